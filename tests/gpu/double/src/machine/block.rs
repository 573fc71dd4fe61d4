//! Blocks: warps that share memory and wait for each other.

use super::{
    Action, Barrier, Counts, Fault, Kind, Launch, WARP,
    shadow::Shadow,
    warp::{Group, Lanes, Value, Wait, Warp, bits},
};

/// What the threads of a block share.
pub struct Block {
    /// Which of the grid it is.
    pub at: [u32; 3],
    /// Shared memory.
    pub shared: Vec<u128>,
    /// Bytes of it.
    pub shared_bytes: usize,
    /// Who touched it last.
    pub shadow: Shadow,
    /// Barriers so far, of blocks before it too.
    pub barriers: u32,
}

/// Warps of instructions after which a block is said not to end.
const LONGEST: u64 = 2_000_000_000;

/// Runs blocks of a launch, one after another, in the same memory.
pub struct Runner<'a> {
    launch: &'a Launch<'a>,
    warps: Vec<Warp>,
    block: Block,
}

impl<'a> Runner<'a> {
    /// One for a launch.
    pub fn new(launch: &'a Launch<'a>) -> Self {
        let bytes = launch.kernel.shared + launch.dynamic;
        let block = Block {
            at: [0; 3],
            // What isn't written is not zero on a device.
            shared: vec![u128::MAX; bytes.div_ceil(16)],
            shared_bytes: bytes,
            shadow: Shadow::new(bytes),
            barriers: 1,
        };
        let warps = (0..launch.threads().div_ceil(WARP)).map(|i| Warp::new(launch, i)).collect();
        Self { launch, warps, block }
    }

    /// Runs the block at a place of the grid.
    ///
    /// # Errors
    /// What went wrong, with the instruction and the thread.
    pub fn run(&mut self, at: [u32; 3], counts: &mut Counts) -> Result<(), Fault> {
        self.block.at = at;
        self.block.barriers += 1;
        self.block.shadow.begin(self.block.barriers);
        self.warps.iter_mut().for_each(|w| w.begin(self.launch.threads()));
        let limit = counts.steps + LONGEST;
        loop {
            let mut went = false;
            for i in 0..self.warps.len() {
                let warp = &mut self.warps[i];
                if !warp.is_ready() {
                    continue;
                }
                went = true;
                if let Err((pc, fault)) = warp.run(self.launch, &mut self.block, counts) {
                    return Err(self.told(i, pc, fault));
                }
            }
            if counts.steps > limit {
                let what = format!("{}: block {at:?} doesn't end", self.launch.kernel.name);
                return Err(Fault { kind: Kind::Timeout, lane: None, what });
            }
            if !went {
                if self.warps.iter().all(|w| w.live == 0) {
                    return Ok(());
                }
                self.release()?;
            }
        }
    }

    /// A fault with its place.
    fn told(&self, warp: usize, pc: usize, fault: Fault) -> Fault {
        let kernel = self.launch.kernel;
        let text = kernel.get(pc).map_or("", |c| &c.text);
        let of = match fault.lane {
            Some(lane) => format!("thread {}", warp * WARP + lane),
            None => format!("warp {warp}"),
        };
        let what = format!("{}: block {:?}, {of}: `{text}`: {}", kernel.name, self.block.at, fault.what);
        Fault { what, ..fault }
    }

    /// Lets the threads of a barrier go on at which all are that take part.
    fn release(&mut self) -> Result<(), Fault> {
        let mut waiting: Vec<(u64, usize, Group)> = vec![];
        for i in 0..self.warps.len() {
            for group in self.warps[i].groups.clone() {
                if let Some(b) = barrier(self.launch, &group) {
                    let id = self.value(i, group.mask, b.id);
                    waiting.push((id, i, group));
                }
            }
        }
        let live: u32 = self.warps.iter().map(|w| w.live.count_ones()).sum();
        let mut ids: Vec<u64> = waiting.iter().map(|w| w.0).collect();
        ids.dedup();
        for id in ids {
            let here: Vec<(usize, Group)> = waiting.iter().filter(|w| w.0 == id).map(|w| (w.1, w.2)).collect();
            let arrived: u32 = here.iter().map(|(_, g)| g.mask.count_ones()).sum();
            let (first, group) = here[0];
            let Some(b) = barrier(self.launch, &group) else { continue };
            let wanted = b.threads.map_or(live, |t| self.value(first, group.mask, t) as u32);
            if arrived != wanted {
                continue;
            }
            for (warp, group) in &here {
                let whole = self.warps[*warp].live == group.mask;
                if barrier(self.launch, group).is_some_and(|b| b.aligned) && !whole {
                    let fault = Fault::of_warp(format!(
                        "lanes {:#x} are at this barrier, and lanes {:#x} of the warp at another instruction",
                        group.mask,
                        self.warps[*warp].live & !group.mask
                    ));
                    return Err(self.told(*warp, group.pc, fault));
                }
            }
            return self.pass(&here);
        }
        let mut what = format!("{}: block {:?}: threads wait for each other", self.launch.kernel.name, self.block.at);
        for (i, warp) in self.warps.iter().enumerate() {
            for g in &warp.groups {
                let text = self.launch.kernel.get(g.pc).map_or("", |c| &c.text);
                what += &format!("\n  warp {i}, lanes {:#x}: `{text}`", g.mask);
            }
        }
        Err(Fault::of_warp(what))
    }

    /// A value of the first lane of a mask.
    fn value(&mut self, warp: usize, mask: u32, of: Value) -> u64 {
        let lanes = Lanes { mask, warp: &mut self.warps[warp], block: &mut self.block, launch: self.launch };
        lanes.get(of)[mask.trailing_zeros() as usize]
    }

    fn pass(&mut self, here: &[(usize, Group)]) -> Result<(), Fault> {
        let mut held = 0;
        let mut all = 0;
        for (warp, group) in here {
            all += group.mask.count_ones() as usize;
            if let Some(r) = barrier(self.launch, group).and_then(|b| b.reduce.as_ref()) {
                let lanes = Lanes {
                    mask: group.mask,
                    warp: &mut self.warps[*warp],
                    block: &mut self.block,
                    launch: self.launch,
                };
                let of = lanes.get(r.of);
                held += bits(group.mask).filter(|l| of[*l] != 0).count();
            }
        }
        for (warp, group) in here {
            let warp = &mut self.warps[*warp];
            if let Some(r) = barrier(self.launch, group).and_then(|b| b.reduce.as_ref()) {
                let v = (r.by)(held, all);
                if let Value::Register(to) = r.to {
                    bits(group.mask).for_each(|l| warp.register(to)[l] = v);
                }
            }
            warp.groups.retain(|g| g.pc != group.pc || g.wait != Wait::Block);
            warp.groups.push(Group { pc: group.pc + 1, mask: group.mask, wait: Wait::Ready });
        }
        self.block.barriers += 1;
        self.warps.iter_mut().for_each(|w| w.barriers = 0);
        Ok(())
    }
}

/// The barrier at which a group waits.
fn barrier<'a>(launch: &Launch<'a>, group: &Group) -> Option<&'a Barrier> {
    match &launch.kernel.get(group.pc)?.action {
        Action::Barrier(b) if group.wait == Wait::Block => Some(b),
        _ => None,
    }
}
