//! Branches, the end of a thread, barriers, and what orders memory.

use super::{Decoder, Result, boxed, each};
use crate::{
    machine::{Action, Barrier, Fault, Kind, Members, Reduce, Value},
    ptx::Operand,
};

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    Ok(Some(match d.opcode() {
        "bra" => {
            // A hint that all lanes go the same way.
            d.ignore(&["uni"]);
            let Operand::Label(to) = d.operand(0)? else { return Err("a branch to no label".into()) };
            Action::Branch(*to)
        }
        "brx" => {
            d.ignore(&["idx", "uni"]);
            let Operand::Labels(to) = d.operand(1)? else { return Err("a branch to no labels".into()) };
            Action::Choose(d.value(0)?, to.clone())
        }
        "ret" | "exit" => {
            d.ignore(&["uni"]);
            Action::Exit
        }
        "trap" => each(|lanes| {
            let lane = lanes.mask.trailing_zeros() as usize;
            Err(Fault::new(Kind::Failed, lane, "the kernel stops itself"))
        }),
        "bar" | "barrier" => barrier(d)?,
        // Accesses are done in order here, one thread after another.
        "membar" => {
            d.ignore(&["cta", "gl", "sys"]);
            each(|_| Ok(()))
        }
        "fence" => {
            d.ignore(&["sc", "acq_rel", "acquire", "release", "cta", "cluster", "gpu", "sys"]);
            // Between accesses by different ways, of which there is one here.
            if d.take("proxy") {
                d.ignore(&["alias", "async", "global", "shared::cta"]);
            }
            each(|_| Ok(()))
        }
        "nanosleep" => {
            d.ignore(&["u32"]);
            each(|_| Ok(()))
        }
        // Programmatic launch: kernels run one after another here.
        "griddepcontrol" => {
            d.ignore(&["wait", "launch_dependents"]);
            each(|_| Ok(()))
        }
        _ => return Ok(None),
    }))
}

fn barrier(d: &mut Decoder<'_>) -> Result<Action> {
    if d.take("warp") {
        if !d.take("sync") {
            return Err("a barrier of a warp without `.sync`".into());
        }
        return Ok(Action::Together(
            Members::Mask(d.value(0)?),
            boxed(|lanes| {
                // As with blocks, what a part of the lanes waits for separates all of them: no race is made up.
                lanes.warp.barriers += 1;
                Ok(())
            }),
        ));
    }
    d.ignore(&["cta"]);
    // `bar` is `barrier.aligned`.
    let aligned = d.take("aligned") || d.opcode() == "bar";
    let threads = |d: &Decoder<'_>, i: usize| if d.operands() > i { d.value(i).map(Some) } else { Ok(None) };
    if d.take("red") {
        let by: fn(usize, usize) -> u64 = if d.take("popc") {
            |held, _| held as u64
        } else if d.take("and") {
            |held, all| u64::from(held == all)
        } else if d.take("or") {
            |held, _| u64::from(held > 0)
        } else {
            return Err("a reduction".into());
        };
        d.ignore(&["u32", "pred"]);
        let last = d.operands() - 1;
        let reduce = Reduce { to: d.value(0)?, of: d.value(last)?, by };
        let threads = if last > 2 { threads(d, 2)? } else { None };
        return Ok(Action::Barrier(Barrier { id: d.value(1)?, threads, aligned, reduce: Some(reduce) }));
    }
    if !d.take("sync") {
        return Err("a barrier that doesn't wait".into());
    }
    let id = if d.operands() > 0 { d.value(0)? } else { Value::Immediate(0) };
    Ok(Action::Barrier(Barrier { id, threads: threads(d, 1)?, aligned, reduce: None }))
}
