//! Warps: 32 lanes, their registers, and where each is in the code.

use super::{Action, Code, Counts, Fault, Kind, Launch, Members, WARP, block::Block};
use crate::ptx::Special;

/// What an instruction reads from a lane, or where it writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// A register.
    Register(usize),
    /// A predicate's negation.
    Not(usize),
    /// A number.
    Immediate(u64),
    /// What the machine knows.
    Special(Special),
    /// Nothing is written.
    Discard,
}

/// What lanes wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Nothing.
    Ready,
    /// Other lanes of the warp.
    Warp,
    /// Other threads of the block.
    Block,
}

/// Lanes at one place in the code.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// The place.
    pub pc: usize,
    /// The lanes.
    pub mask: u32,
    /// What they wait for there.
    pub wait: Wait,
}

/// A copy to shared memory that is under way: it arrives when it is waited for.
#[derive(Debug, Clone)]
pub struct Copying {
    /// Where it goes.
    pub to: u64,
    /// What was read.
    pub bytes: Vec<u8>,
}

/// A warp of a block.
pub struct Warp {
    /// Which of the block it is.
    pub index: usize,
    /// Its lanes that haven't ended.
    pub live: u32,
    /// Where they are.
    pub groups: Vec<Group>,
    /// Barriers of the warp since the last one of the block.
    pub barriers: u32,
    /// Local memory of all lanes.
    pub local: Vec<u128>,
    /// Allocations that were touched last.
    pub recent: [(u64, u64); 4],
    /// By lane: copies of groups that were closed, and of the one that is open.
    pub copies: Vec<(Vec<Vec<Copying>>, Vec<Copying>)>,
    registers: Vec<[u64; WARP]>,
}

/// Warps of instructions after which another warp gets its turn, so that one that waits for a flag doesn't wait for ever.
const TURN: u64 = 100_000;

impl Warp {
    /// A warp of a launch.
    pub fn new(launch: &Launch<'_>, index: usize) -> Self {
        let kernel = launch.kernel;
        Self {
            index,
            live: 0,
            groups: vec![],
            barriers: 0,
            local: vec![0; kernel.local.div_ceil(16) * WARP],
            recent: [(0, 0); 4],
            copies: vec![(vec![], vec![]); WARP],
            registers: vec![[0; WARP]; kernel.registers],
        }
    }

    /// A block begins.
    pub fn begin(&mut self, threads: usize) {
        let lanes = threads.saturating_sub(self.index * WARP).min(WARP);
        self.live = ((1u64 << lanes) - 1) as u32;
        self.groups = vec![Group { pc: 0, mask: self.live, wait: Wait::Ready }];
        self.barriers = 0;
        self.copies.iter_mut().for_each(|(closed, open)| {
            closed.clear();
            open.clear();
        });
    }

    /// Whether lanes can go on.
    pub fn is_ready(&self) -> bool {
        self.groups.iter().any(|g| g.wait == Wait::Ready)
    }

    /// Runs until nothing can go on, or it is another warp's turn. Of several groups the one that is least far in the code goes on,
    /// so that lanes meet again behind a branch.
    ///
    /// # Errors
    /// What went wrong, and at which instruction.
    pub fn run(&mut self, launch: &Launch<'_>, block: &mut Block, counts: &mut Counts) -> Result<(), (usize, Fault)> {
        let until = counts.steps + TURN;
        while counts.steps < until {
            let ready = self.groups.iter().enumerate().filter(|(_, g)| g.wait == Wait::Ready);
            let Some((i, _)) = ready.min_by_key(|(_, g)| g.pc) else { return Ok(()) };
            let Group { pc, mask, .. } = self.groups.swap_remove(i);
            self.follow(launch, block, counts, (pc, mask), until)?;
        }
        Ok(())
    }

    /// Runs a group until it splits, waits, ends, or others are less far.
    fn follow(
        &mut self,
        launch: &Launch<'_>,
        block: &mut Block,
        counts: &mut Counts,
        (mut pc, mut mask): (usize, u32),
        until: u64,
    ) -> Result<(), (usize, Fault)> {
        loop {
            if !self.groups.is_empty() {
                self.groups.retain(|g| {
                    let here = g.pc == pc && g.wait != Wait::Block;
                    if here {
                        mask |= g.mask;
                    }
                    !here
                });
                if self.groups.iter().any(|g| g.wait == Wait::Ready && g.pc < pc) {
                    break;
                }
            }
            if counts.steps >= until {
                break;
            }
            let Some(code) = launch.kernel.get(pc) else {
                self.end(mask);
                return Ok(());
            };
            counts.steps += 1;
            counts.lanes += u64::from(mask.count_ones());
            let on = match code.guard {
                None => mask,
                Some((p, negated)) => {
                    let p = &self.registers[p];
                    let holds = (0..WARP).fold(0, |m, l| m | u32::from(p[l] != 0) << l);
                    mask & if negated { !holds } else { holds }
                }
            };
            if on == 0 {
                pc += 1;
                continue;
            }
            let off = mask & !on;
            let step = |warp: &mut Self, block: &mut Block, step: &super::Step, mask: u32| {
                step(&mut Lanes { mask, warp, block, launch }).map_err(|fault| (pc, fault))
            };
            match &code.action {
                Action::Lanes(s) => step(self, block, s, on)?,
                Action::Branch(to) if off == 0 => {
                    pc = *to;
                    continue;
                }
                Action::Branch(to) => {
                    self.park(*to, on, Wait::Ready);
                    mask = off;
                }
                Action::Choose(of, to) => {
                    let lanes = Lanes { mask: on, warp: self, block, launch };
                    let of = lanes.get(*of);
                    for lane in bits(on) {
                        let Some(to) = to.get(of[lane] as usize) else {
                            let what = format!("chooses {} of {} labels", of[lane], to.len());
                            return Err((pc, Fault::new(Kind::Failed, lane, what)));
                        };
                        self.park(*to, 1 << lane, Wait::Ready);
                    }
                    mask = off;
                }
                Action::Exit => {
                    self.end(on);
                    mask = off;
                }
                Action::Barrier(_) => {
                    self.park(pc, on, Wait::Block);
                    mask = off;
                }
                Action::Together(members, s) => {
                    // Groups of lanes that name each other go on, each for itself; the others wait.
                    let mut left = on;
                    while left != 0 {
                        let (wanted, same) = self.wanted(*members, left, launch, block).map_err(|fault| (pc, fault))?;
                        if wanted & !same == 0 {
                            counts.tensor += u64::from(code.tensor);
                            step(self, block, s, same)?;
                        } else {
                            self.park(pc, same, Wait::Warp);
                            mask &= !same;
                        }
                        left &= !same;
                    }
                }
            }
            if mask == 0 {
                return Ok(());
            }
            pc += 1;
        }
        self.park(pc, mask, Wait::Ready);
        Ok(())
    }

    /// Threads end. Lanes that waited for them may go on.
    fn end(&mut self, lanes: u32) {
        self.live &= !lanes;
        self.groups.iter_mut().filter(|g| g.wait == Wait::Warp).for_each(|g| g.wait = Wait::Ready);
    }

    /// The lanes that have to be there for the first of `on`, and those of `on` that name the same.
    fn wanted(
        &mut self,
        members: Members,
        on: u32,
        launch: &Launch<'_>,
        block: &mut Block,
    ) -> Result<(u32, u32), Fault> {
        match members {
            Members::Present => Ok((on, on)),
            Members::All if self.live != u32::MAX => {
                Err(Fault::of_warp(format!("needs all lanes of the warp, of which {} run", self.live.count_ones())))
            }
            Members::All => Ok((u32::MAX, on)),
            Members::Mask(of) => {
                let masks = Lanes { mask: on, warp: self, block, launch }.get(of);
                let first = masks[on.trailing_zeros() as usize] as u32;
                let same = bits(on).filter(|l| masks[*l] as u32 == first).fold(0, |m, l| m | 1 << l);
                if let Some(lane) = bits(same).find(|l| first >> l & 1 == 0) {
                    return Err(Fault::new(Kind::Failed, lane, "runs this and is not in its mask of members"));
                }
                Ok((first & self.live, same))
            }
        }
    }

    fn park(&mut self, pc: usize, mask: u32, wait: Wait) {
        match self.groups.iter_mut().find(|g| g.pc == pc && g.wait == wait) {
            Some(g) => g.mask |= mask,
            None => self.groups.push(Group { pc, mask, wait }),
        }
    }

    /// A register, for what a block's barrier writes.
    pub fn register(&mut self, r: usize) -> &mut [u64; WARP] {
        &mut self.registers[r]
    }
}

/// The lanes of a mask.
pub fn bits(mask: u32) -> impl Iterator<Item = usize> {
    (0..WARP).filter(move |l| mask >> l & 1 == 1)
}

/// The lanes that an instruction runs for.
pub struct Lanes<'a> {
    /// Which they are.
    pub mask: u32,
    /// Their warp.
    pub warp: &'a mut Warp,
    /// Their block.
    pub block: &'a mut Block,
    /// What was launched.
    pub launch: &'a Launch<'a>,
}

impl Lanes<'_> {
    /// The lanes that run, in order.
    pub fn each(&self) -> impl Iterator<Item = usize> + use<> {
        bits(self.mask)
    }

    /// A value in every lane, also in those that don't run.
    #[inline]
    pub fn get(&self, of: Value) -> [u64; WARP] {
        match of {
            Value::Register(r) => self.warp.registers[r],
            Value::Not(r) => self.warp.registers[r].map(|v| u64::from(v == 0)),
            Value::Immediate(v) => [v; WARP],
            Value::Special(s) => std::array::from_fn(|lane| self.special(s, lane)),
            Value::Discard => [0; WARP],
        }
    }

    /// Writes a value of every lane that runs.
    #[inline]
    pub fn set(&mut self, to: Value, values: [u64; WARP]) {
        let Value::Register(r) = to else { return };
        let held = &mut self.warp.registers[r];
        if self.mask == u32::MAX {
            *held = values;
            return;
        }
        for lane in 0..WARP {
            if self.mask >> lane & 1 == 1 {
                held[lane] = values[lane];
            }
        }
    }

    /// A value in one lane.
    #[inline]
    pub fn at(&self, of: Value, lane: usize) -> u64 {
        match of {
            Value::Register(r) => self.warp.registers[r][lane],
            other => self.get(other)[lane],
        }
    }

    /// Writes a value of one lane.
    #[inline]
    pub fn put(&mut self, to: Value, lane: usize, v: u64) {
        if let Value::Register(r) = to {
            self.warp.registers[r][lane] = v;
        }
    }

    fn special(&self, s: Special, lane: usize) -> u64 {
        let thread = (self.warp.index * WARP + lane) as u32;
        let [x, y, _] = self.launch.block;
        u64::from(match s {
            Special::Tid(0) => thread % x,
            Special::Tid(1) => thread / x % y,
            Special::Tid(_) => thread / x / y,
            Special::Ntid(axis) => self.launch.block[axis],
            Special::Ctaid(axis) => self.block.at[axis],
            Special::Nctaid(axis) => self.launch.grid[axis],
            Special::Laneid => lane as u32,
            Special::Warpid => self.warp.index as u32,
            Special::LanemaskEq => 1 << lane,
            Special::LanemaskLt => (1 << lane) - 1,
            Special::LanemaskLe => u32::MAX >> (31 - lane),
            Special::LanemaskGe => u32::MAX << lane,
            Special::LanemaskGt => !(u32::MAX >> (31 - lane)),
            Special::Clock => self.block.barriers,
            Special::DynamicSmemSize => self.launch.dynamic as u32,
            Special::TotalSmemSize => self.block.shared_bytes as u32,
        })
    }
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}
