//! Bools, which are codes: 0 and, for true, 1, or any other in a file. Comparisons, And, Or, Xor, Not, IsNaN; Where, and what Cast makes of them.

use crate::cpu::{
    cost,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
    steps::{Element, Operands},
};
use compress_compiler::{
    error::Result,
    node::Port,
    op::Op,
    ops::{binary::Binary, cast::Cast, unary::Unary},
    tensor::DType,
};
use compress_kernels::{Broadcast, zip};

/// The value `want`, where it is made of bools, or is one.
pub(super) fn lowering<'g>(s: &Scope<'g>, want: Want) -> Option<Lowering<'g>> {
    let g = s.graph;
    let id = want.port.node;
    let operands: Vec<Port> = g.operands(id).into_iter().flatten().collect();
    let types: Vec<DType> = operands.iter().map(|p| g.fact(*p).dtype).collect::<Option<_>>()?;
    if !s.has(id) || s.on_device || operands.iter().any(|p| s.rank(*p).is_none()) {
        return None;
    }
    let of = |wants: Vec<Want>, logic: Logic| Some(Lowering::of(wants, logic));
    let floats = || operands.iter().map(|p| Want::float(*p)).collect();
    let bools = || operands.iter().map(|p| Want::codes(*p)).collect();
    match (g.op(id), &types[..]) {
        (Op::Where(_), [DType::Bool, DType::F32, DType::F32]) => {
            let [condition, a, b] = operands[..] else { return None };
            of(vec![Want::codes(condition), Want::float(a), Want::float(b)], Logic::Where)
        }
        (Op::Cast(Cast { to: DType::F32, .. }), [DType::Bool]) => of(bools(), Logic::Float),
        (Op::Unary(Unary::IsNaN), [DType::F32]) => of(floats(), Logic::IsNan),
        (Op::Unary(Unary::Not), [DType::Bool]) => of(bools(), Logic::Not),
        (Op::Binary(op @ (Binary::And | Binary::Or | Binary::Xor)), [DType::Bool, DType::Bool]) => {
            of(bools(), Logic::Both(*op))
        }
        (Op::Binary(op), [DType::F32, DType::F32]) if op.is_logical() => of(floats(), Logic::Compared(*op)),
        _ => None,
    }
}

enum Logic {
    /// A float where a bool is true, another where it is false.
    Where,
    /// 0 or 1.
    Float,
    IsNan,
    Not,
    Both(Binary),
    Compared(Binary),
}

impl Lowered for Logic {
    fn is_by_sample(&self, inputs: &[Operand], output: &[usize]) -> bool {
        super::elementwise::is_by_sample(inputs, output)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let dims = p.dims(output).to_vec();
        let steps: Vec<Vec<usize>> = inputs.iter().map(|id| steps(p.dims(*id), &dims)).collect();
        let reads: Vec<_> = inputs.iter().map(|id| (p.dense(*id), p.size(*id))).collect();
        let y = p.output(output, Layout::Plain);
        let work = cost::bytes(2 * y.len() * reads.iter().map(|r| r.1).sum::<usize>());
        match *self {
            Logic::Where => p.step_of("where", output, reads, y, 0, work, move |o| {
                let of = (spread(o, 0, &steps[0]), spread(o, 1, &steps[1]), spread(o, 2, &steps[2]));
                zip(&dims, of, o.out(), o.parts, |is: u8, a: f32, b: f32| if is == 0 { b } else { a });
            }),
            Logic::Float => {
                p.step_of("logic", output, reads, y, 0, work, of_one(dims, steps, |a: u8| f32::from(u8::from(a != 0))))
            }
            Logic::Not => p.step_of("logic", output, reads, y, 0, work, of_one(dims, steps, |a: u8| u8::from(a == 0))),
            Logic::IsNan => {
                let call = of_one(dims, steps, |a: f32| u8::from(a.is_nan()));
                p.step_of("logic", output, reads, y, 0, work, call);
            }
            Logic::Both(op) => {
                let both = move |a: u8, b: u8| {
                    let (a, b) = (a != 0, b != 0);
                    u8::from(match op {
                        Binary::And => a && b,
                        Binary::Or => a || b,
                        _ => a != b,
                    })
                };
                p.step_of("logic", output, reads, y, 0, work, of_two(dims, steps, both));
            }
            Logic::Compared(op) => {
                let call = of_two(dims, steps, move |a: f32, b: f32| u8::from(compared(op, a, b)));
                p.step_of("logic", output, reads, y, 0, work, call);
            }
        }
        Ok(())
    }
}

fn of_one<A: Element, Y: Element>(
    dims: Vec<usize>,
    steps: Vec<Vec<usize>>,
    f: impl Fn(A) -> Y + Send + Sync,
) -> impl Fn(&mut Operands) + Send + Sync {
    let none = vec![0; dims.len()];
    move |o| {
        let nothing = Broadcast { data: &[()], steps: &none };
        zip(&dims, (spread(o, 0, &steps[0]), nothing, nothing), o.out(), o.parts, |a, (), ()| f(a));
    }
}

fn of_two<A: Element, Y: Element>(
    dims: Vec<usize>,
    steps: Vec<Vec<usize>>,
    f: impl Fn(A, A) -> Y + Send + Sync,
) -> impl Fn(&mut Operands) + Send + Sync {
    let none = vec![0; dims.len()];
    move |o| {
        let nothing = Broadcast { data: &[()], steps: &none };
        let of = (spread(o, 0, &steps[0]), spread(o, 1, &steps[1]), nothing);
        zip(&dims, of, o.out(), o.parts, |a, b, ()| f(a, b));
    }
}

fn spread<'a, T: Element>(o: &Operands<'a>, i: usize, steps: &'a [usize]) -> Broadcast<'a, T> {
    Broadcast { data: o.slice(i), steps }
}

/// How far apart the elements of an operand of sizes `own` are along each axis of a result of sizes `dims`.
pub(super) fn steps(own: &[usize], dims: &[usize]) -> Vec<usize> {
    let mut steps = vec![0; dims.len()];
    let mut size = 1;
    for (step, n) in steps.iter_mut().rev().zip(own.iter().rev()) {
        *step = if *n == 1 { 0 } else { size };
        size *= n;
    }
    steps
}

fn compared(op: Binary, a: f32, b: f32) -> bool {
    match op {
        Binary::Equal => a == b,
        Binary::Less => a < b,
        Binary::LessOrEqual => a <= b,
        Binary::Greater => a > b,
        _ => a >= b,
    }
}
