//! ConvTranspose by a constant weight, with the function that follows it: products of every position by all taps, and what
//! falls on each pixel of the output added up.

use super::{elementwise::applied, product::End};
use crate::cpu::{
    cost,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
};
use compress_compiler::{
    error::{Error, Result},
    node::Port,
    op::Op,
    ops::conv_transpose::ConvTranspose,
    tensor::DType,
};
use compress_kernels::{ConvF, Spread, Window};
use std::sync::Arc;

/// More products than this for each pixel of the output take more memory and time than they save.
const MOST_PRODUCTS: f64 = 16.0;

/// The value `port`, where it is a transposed convolution in one group, then perhaps bounds, then a function.
pub(super) fn lowering<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let g = s.graph;
    let (then, before) = applied(s, port).map_or((None, port), |(f, x)| (Some(f), x));
    let (at, low, high) = s.unclamped(before);
    let Op::ConvTranspose(op) = g.op(at.node) else { return None };
    let (x, weight, bias) = (g.operand(at.node, 0)?, g.operand(at.node, 1)?, g.operand(at.node, 2));
    let shape = g.fact(weight).fixed()?;
    let [channels, outputs, taps @ ..] = &shape[..] else { return None };
    let strides: f64 = (0..taps.len()).map(|axis| op.window.stride(axis) as f64).product();
    let fits = s.has(at.node)
        && op.group == 1
        && matches!(taps.len(), 1 | 2)
        && s.rank(x) == Some(shape.len())
        && g.fact(x).dtype == Some(DType::F32)
        && !s.is_constant(x)
        && s.is_constant(weight)
        && bias.is_none_or(|b| s.is_constant(b) && g.fact(b).fixed().as_deref() == Some(&[*outputs]))
        && *channels > 0
        && *outputs > 0
        && taps.iter().product::<usize>() as f64 <= MOST_PRODUCTS * strides;
    if !fits {
        return None;
    }
    let (weight, bias) = (s.constant_later(weight), bias.map(|b| s.constant_later(b)));
    let (op, channels, outputs, taps) = (op.clone(), *channels, *outputs, taps.to_vec());
    let kernel = if let [h, w] = taps[..] { [h, w] } else { [1, taps[0]] };
    Some(Lowering::with(vec![Want::float(x)], move |isa| {
        let (t, n) = (weight()?, kernel[0] * kernel[1]);
        let values = t.as_f32().ok_or_else(|| Error::bug("a float weight"))?;
        // `[taps][outputs][channels]`: the channels of a tap follow each other in the products.
        let of = |tap: usize, output: usize| (0..channels).map(move |c| (c * outputs + output) * n + tap);
        let order = (0..n).flat_map(|tap| (0..outputs).flat_map(move |output| of(tap, output)));
        let data: Vec<f32> = order.map(|i| values[i]).collect();
        let all = n * outputs;
        let (none, free) = (vec![0.0; all], (f32::NEG_INFINITY, f32::INFINITY));
        let product = ConvF::new(isa, &data, all, [1, 1], channels, 1, none, free.0, free.1);
        let bias = match bias {
            Some(b) => b()?.as_f32().ok_or_else(|| Error::bug("a float bias"))?.into_owned(),
            None => vec![0.0; outputs],
        };
        Ok(Transposed {
            op,
            kernel,
            product: product.into(),
            bias,
            end: End { low, high, then },
            weight_bytes: size_of_val(&data[..]),
        })
    }))
}

struct Transposed {
    op: ConvTranspose,
    kernel: [usize; 2],
    product: Arc<ConvF>,
    bias: Vec<f32>,
    end: End,
    weight_bytes: usize,
}

impl Transposed {
    /// The window of the convolution that is transposed: it slides over the output `y`, and has a position for each pixel
    /// of `x`.
    fn window(&self, x: &[usize], y: &[usize]) -> Result<Window> {
        let spatial = x.len() - 2;
        let mut window = Window { input: [1; 2], output: [1; 2], kernel: self.kernel, ..Window::pixel(1) };
        window.batch = x[0];
        for axis in 0..spatial {
            let to = axis + 2 - spatial;
            let placed = self.op.placed(axis, spatial, x[2 + axis] as i64, self.kernel[to] as i64);
            let (begin, size) = placed.ok_or_else(|| Error::malformed("padding leaves no output"))?;
            let pad = usize::try_from(begin).map_err(|_| Error::unsupported("negative padding"))?;
            if size as usize != y[2 + axis] {
                return Err(Error::bug(format!("{x:?} becomes {y:?}")));
            }
            (window.input[to], window.output[to], window.pad[to]) = (y[2 + axis], x[2 + axis], pad);
            window.stride[to] = self.op.window.stride(axis) as usize;
            window.dilation[to] = self.op.window.dilation(axis) as usize;
        }
        Ok(window)
    }
}

impl Lowered for Transposed {
    fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let window = self.window(p.dims(inputs[0]), p.dims(output))?;
        let x = p.read(inputs[0], Layout::Pixels);
        let y = p.output(output, Layout::Pixels);
        let spread = Spread::new(p.isa(), window, self.bias.clone(), self.end.low, self.end.high).then(self.end.then);
        let added = 4 * (x.rows * window.taps() * self.bias.len() + y.len());
        let work = cost::macs32(p.isa(), self.product.macs(&Window::pixel(x.rows))) + cost::bytes(added);
        let product = self.product.clone();
        let scratch = spread.scratch(&product, p.parts(work));
        p.step("conv_transpose_f32", output, &[x], y, scratch, work, move |o| {
            let (x, parts) = (o.read(0), o.parts);
            let (y, scratch) = o.write();
            spread.run(&product, x, y, scratch, parts);
        });
        Ok(())
    }
}
