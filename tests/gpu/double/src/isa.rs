//! What each instruction computes, by the PTX ISA.
//!
//! A module of this folder decodes a family of instructions. It *takes* each modifier that it knows; one that is left, as one that
//! a family doesn't know, makes the kernel fail when it is launched. So nothing is passed over in silence.

mod approximate;
mod arithmetic;
mod atomic;
mod bits;
mod collective;
mod compare;
mod control;
mod convert;
mod float;
mod matrix;
mod memory;
mod mma;
mod small;
mod wmma;

use crate::{
    machine::{Action, Code, Fault, Kernel, Kind, Lanes, Step, Value, WARP},
    ptx::{Base, Entry, Instruction, Operand, Type},
};

/// Why an instruction can't be run.
type Result<T> = std::result::Result<T, String>;

/// Decodes the instructions of a family.
type Family = fn(&mut Decoder<'_>) -> Result<Option<Action>>;

/// The families, tried in this order: each returns nothing for opcodes that are not its own.
const FAMILIES: &[Family] = &[
    control::decode,
    memory::decode,
    atomic::decode,
    bits::decode,
    compare::decode,
    convert::decode,
    small::decode,
    float::decode,
    arithmetic::decode,
    collective::decode,
    matrix::decode,
    mma::decode,
    wmma::decode,
];

/// A kernel that runs. An instruction that isn't known fails when a thread comes to it.
pub fn decode(entry: &Entry) -> Kernel {
    Kernel {
        name: entry.name.clone(),
        params: entry.params.clone(),
        registers: entry.registers,
        shared: entry.shared,
        local: entry.local,
        code: entry.code.iter().map(code).collect(),
    }
}

fn code(i: &Instruction) -> Code {
    let action = action(i).unwrap_or_else(|why| {
        Action::Lanes(Box::new(move |lanes: &mut Lanes<'_>| {
            let lane = lanes.mask.trailing_zeros() as usize;
            Err(Fault::new(Kind::Instruction, lane, format!("the double can't run this: {why}")))
        }))
    });
    Code { guard: i.guard, action, text: i.text.clone(), tensor: ["mma", "wmma"].contains(&i.opcode.as_str()) }
}

fn action(i: &Instruction) -> Result<Action> {
    for family in FAMILIES {
        let mut d = Decoder { instruction: i, left: i.modifiers.iter().map(String::as_str).collect() };
        if let Some(action) = family(&mut d)? {
            return match d.left.first() {
                None => Ok(action),
                Some(word) => Err(format!("the modifier `.{word}`")),
            };
        }
    }
    Err(format!("the instruction `{}`", i.opcode))
}

/// An instruction that is being decoded: its modifiers are taken one by one.
struct Decoder<'a> {
    instruction: &'a Instruction,
    left: Vec<&'a str>,
}

impl<'a> Decoder<'a> {
    fn opcode(&self) -> &'a str {
        &self.instruction.opcode
    }

    /// Whether it has a modifier, which is then taken.
    fn take(&mut self, word: &str) -> bool {
        let found = self.left.iter().position(|w| *w == word);
        found.map(|i| self.left.remove(i)).is_some()
    }

    /// Takes the first of several modifiers that it has.
    fn one_of<T: Copy>(&mut self, words: &[(&str, T)]) -> Option<T> {
        words.iter().find(|(word, _)| self.take(word)).map(|(_, v)| *v)
    }

    /// Takes modifiers that say nothing of the result.
    fn ignore(&mut self, words: &[&str]) {
        self.left.retain(|w| !words.contains(w));
    }

    /// Takes the first type.
    fn ty(&mut self) -> Result<Type> {
        let found = self.left.iter().enumerate().find_map(|(i, w)| Some((i, Type::of(w)?)));
        let (i, ty) = found.ok_or("no type")?;
        self.left.remove(i);
        Ok(ty)
    }

    /// Takes the first type, which has to be one of those.
    fn ty_of(&mut self, known: &[Type]) -> Result<Type> {
        let ty = self.ty()?;
        known.contains(&ty).then_some(ty).ok_or_else(|| format!("`{}` of {ty:?}", self.opcode()))
    }

    fn operand(&self, i: usize) -> Result<&'a Operand> {
        self.instruction.operands.get(i).ok_or_else(|| format!("operand {i} is missing"))
    }

    fn operands(&self) -> usize {
        self.instruction.operands.len()
    }

    /// A value that is read or written.
    fn value(&self, i: usize) -> Result<Value> {
        value(self.operand(i)?)
    }

    /// The values of `{a, b}`, or of one that stands alone.
    fn vector(&self, i: usize) -> Result<Vec<Value>> {
        match self.operand(i)? {
            Operand::Vector(of) => of.iter().map(value).collect(),
            one => Ok(vec![value(one)?]),
        }
    }

    /// An address: what a register holds, and what is added to it.
    fn address(&self, i: usize) -> Result<(Value, i64)> {
        match self.operand(i)? {
            Operand::Address(Base::Register(r), offset) => Ok((Value::Register(*r), *offset)),
            Operand::Address(Base::Shared(at) | Base::Local(at) | Base::Param(at) | Base::Absolute(at), offset) => {
                Ok((Value::Immediate(*at), *offset))
            }
            _ => Err(format!("operand {i} is not an address")),
        }
    }
}

fn value(of: &Operand) -> Result<Value> {
    Ok(match of {
        Operand::Register(r) => Value::Register(*r),
        Operand::Not(r) => Value::Not(*r),
        Operand::Immediate(v) => Value::Immediate(*v),
        Operand::Special(s) => Value::Special(*s),
        Operand::Symbol(Base::Shared(at) | Base::Local(at) | Base::Param(at) | Base::Absolute(at)) => {
            Value::Immediate(*at)
        }
        Operand::Discard => Value::Discard,
        other => return Err(format!("the operand {other:?}")),
    })
}

/// An action of each lane: a result from `N` operands, which follow the destination.
fn map<const N: usize>(d: &Decoder<'_>, f: impl Fn([u64; N]) -> u64 + Send + Sync + 'static) -> Result<Action> {
    if d.operands() != N + 1 {
        return Err(format!("{} operands", d.operands()));
    }
    let to = d.value(0)?;
    let mut of = [Value::Discard; N];
    for (i, of) in of.iter_mut().enumerate() {
        *of = d.value(i + 1)?;
    }
    Ok(each(move |lanes| {
        let of = of.map(|v| lanes.get(v));
        let mut out = [0; WARP];
        for (lane, out) in out.iter_mut().enumerate() {
            let mut a = [0; N];
            for i in 0..N {
                a[i] = of[i][lane];
            }
            *out = f(a);
        }
        lanes.set(to, out);
        Ok(())
    }))
}

/// An action of the lanes.
fn each(step: impl Fn(&mut Lanes<'_>) -> std::result::Result<(), Fault> + Send + Sync + 'static) -> Action {
    Action::Lanes(boxed(step))
}

fn boxed(step: impl Fn(&mut Lanes<'_>) -> std::result::Result<(), Fault> + Send + Sync + 'static) -> Step {
    Box::new(step)
}
