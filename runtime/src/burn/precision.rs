//! In which width training and inference compute (Micikevicius et al. 2018).
//!
//! Parameters, and what an optimiser remembers of them, are 32 bits wide in any case. On a CPU bf16 is the width of what
//! convolutions and products multiply, and nothing else. Elsewhere, and in f16, convolutions and products narrow what
//! they read, on the tape, so that the gradients of parameters are wide again. What they make stays narrow as long as
//! operators only move, rectify or add it; all others compute in 32 bits, and those whose results are about as large as
//! what they read give these back as narrow as that was.

use super::tensor::{Value, multiplying};
use compress_compiler::{
    choice,
    error::Result,
    op::{Op, Operator, Width},
};
use compress_kernels::train::FactorWidth;

/// The width of convolutions and products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// The upper half of those: their range, and 8 bits of a number.
    Bf16,
    /// 11 bits of a number, up to 65504: needs its gradients scaled.
    F16,
}

choice!(Precision, "precision", [
    F32 "f32" "32 bits",
    Bf16 "bf16" "the upper 16 bits of f32",
    F16 "f16" "16 bits, with the loss scaled",
]);

impl Precision {
    /// Whether it is one of 16 bits.
    pub fn is_half(self) -> bool {
        self != Self::F32
    }

    /// Why training in it takes longer than in 32 bits on this CPU, if it does.
    pub fn slow_on_cpu(self) -> Option<&'static str> {
        match self {
            Self::F32 => None,
            Self::Bf16 if FactorWidth::Bf16.is_fast() => None,
            Self::Bf16 => Some("this processor has no products of bf16 (AVX-512 BF16, or BF16 of ARM)"),
            Self::F16 => Some("a CPU computes in f32 anyway"),
        }
    }

    /// Runs `op` on values in the width that suits it.
    ///
    /// # Errors
    /// Those of `eval`.
    pub(super) fn around(
        self,
        op: &Op,
        mut values: Vec<Option<Value>>,
        eval: impl FnOnce(Vec<Option<Value>>) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        if !self.is_half() {
            return eval(values);
        }
        let has_kernels = |v: &Value| matches!(v, Value::Float(x) if x.has_kernels());
        if self == Self::Bf16 && values.iter().flatten().any(has_kernels) {
            return match op.width() {
                Width::Product => multiplying(FactorWidth::Bf16, || eval(values)),
                _ => eval(values),
            };
        }
        let narrow = |v: &Value| matches!(v, Value::Float(x) if x.is_half());
        let wide = |v: &Value| matches!(v, Value::Float(x) if x.dtype().is_float() && !x.is_half());
        let (inside, outside) = match op.width() {
            Width::Product => (self, self),
            Width::Moving if !values.iter().flatten().any(wide) => (self, self),
            Width::Bounded if values.first().is_some_and(|v| v.as_ref().is_some_and(narrow)) => (Self::F32, self),
            _ => (Self::F32, Self::F32),
        };
        for value in values.iter_mut().flatten() {
            value.hold(inside);
        }
        let mut made = eval(values)?;
        // Other outputs than the first are statistics and places.
        made.iter_mut().take(1).for_each(|value| value.hold(outside));
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{burn::Executable, device::Device};
    use compress_compiler::{tensor::Tensor, text, verify::verify};

    /// Numbers that no half has.
    const NUMBERS: [f32; 8] = [0.1, 0.2, 0.3, -0.4, 0.5, 0.6, -0.7, 0.8];

    /// The outputs of a graph.
    fn run(precision: Precision, source: &str, x: &[f32; 8]) -> Vec<Vec<f32>> {
        let graph = text::parse(source).unwrap();
        let exe = Executable::new(&verify(&graph).unwrap(), &Device::cpu()).unwrap().in_precision(precision);
        let x = Tensor::f32(&[1, 2, 2, 2], x);
        let values = vec![Value::upload(&x, &Device::cpu()).unwrap()];
        exe.run_values(values).unwrap().into_iter().map(|v| v.download().unwrap().as_f32().unwrap().to_vec()).collect()
    }

    #[test]
    fn products_are_narrow_and_sums_of_constants_wide() {
        let source = r#"graph "g" {
            input %x: f32[N,2,2,2]
            const %w: f32[2,2,1,1] = [1.1, 0.2, -0.3, 0.7]
            const %b: f32[2] = [0.1, 0.2]
            const %c: f32[1,2,1,1] = [0.123456, 100000]
            %conv = Conv(%x, %w, %b)
            %twice = Add(%conv, %conv)
            %pool = MaxPool(%twice) {kernel_shape=[2,2]}
            %soft = Softmax(%pool) {axis=1}
            %moved = Transpose(%soft) {perm=[0,2,3,1]}
            %sum = Add(%conv, %c)
            %exp = Exp(%conv)
            %product = MatMul(%exp, %sum)
            output %conv
            output %twice
            output %pool
            output %moved
            output %sum
            output %exp
            output %product
        }"#;
        let (wide, made) = (run(Precision::F32, source, &NUMBERS), run(Precision::F16, source, &NUMBERS));
        let is_half = |v: &Vec<f32>| v.iter().all(|v| half::f16::from_f32(*v).to_f32() == *v);
        let halves: Vec<bool> = made.iter().map(is_half).collect();
        // The large constant is not an f16: what adds it must be wide, and its product is infinite in f16.
        assert_eq!(halves, [true, true, true, true, false, false, true], "{made:?}");
        assert!(made[4][4] > 99_000.0, "{made:?}");
        for (made, wide) in made[..6].iter().zip(&wide) {
            let off = made.iter().zip(wide).map(|(a, b)| (a - b).abs() / b.abs().max(0.1));
            assert!(off.fold(0.0, f32::max) < 0.05, "{made:?} {wide:?}");
        }
        assert_eq!(made[6][4..], [f32::INFINITY; 4]);
    }

    #[test]
    fn a_cpu_rounds_to_bf16_what_it_multiplies() {
        let source = |w: [f32; 4]| {
            format!(
                r#"graph "g" {{
                    input %x: f32[N,2,2,2]
                    const %w: f32[2,2,1,1] = {w:?}
                    const %m: f32[2,2] = {w:?}
                    const %b: f32[2] = [0.1, 0.2]
                    %conv = Conv(%x, %w, %b)
                    %product = MatMul(%x, %m)
                    %sum = Add(%x, %b)
                    output %conv
                    output %product
                    output %sum
                }}"#
            )
        };
        let near = |v: f32| half::bf16::from_f32(v).to_f32();
        let w = [1.1, 0.2, -0.3, 0.7];
        let [narrow, wide] = [Precision::Bf16, Precision::F32].map(|p| run(p, &source(w), &NUMBERS));
        let rounded = run(Precision::F32, &source(w.map(near)), &NUMBERS.map(near));
        let off = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
        for i in 0..2 {
            assert!(off(&narrow[i], &rounded[i]) < 1e-6, "{narrow:?} {rounded:?}");
            assert!(off(&narrow[i], &wide[i]) > 1e-4, "{narrow:?} {wide:?}");
        }
        assert_eq!(narrow[2], wide[2]);
    }

    #[test]
    fn names() {
        for name in ["f32", "bf16", "f16"] {
            assert_eq!(name.parse::<Precision>().unwrap().to_string(), name);
        }
        assert_eq!("int8".parse::<Precision>().unwrap_err().exit_code(), 2);
    }
}
