//! Memory: whether an address is one, and what is there.

use super::{Fault, Kind, Lanes, shadow::Moment};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Where shared memory lies among generic addresses.
pub const SHARED: u64 = 1 << 56;

/// Where a thread's local memory lies among generic addresses.
pub const LOCAL: u64 = 1 << 57;

/// A state space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Any of the others, by the address.
    Generic,
    /// Device memory: the host's addresses.
    Global,
    /// The block's, from 0.
    Shared,
    /// The thread's, from 0.
    Local,
    /// The parameters of the kernel, from 0.
    Param,
}

/// What is done with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It is read.
    Read,
    /// It is written.
    Write,
    /// It is read and written at once.
    Atomic,
    /// A copy to it begins.
    Copy,
    /// The copy was waited for.
    Arrive,
}

/// Bytes that a launch may touch: allocations and variables, in order of their addresses.
pub type Ranges = Vec<(u64, u64)>;

/// A place that an access was found to be right for.
#[derive(Debug, Clone, Copy)]
pub struct Place(u64);

impl Place {
    /// The value of `bytes` bytes, `offset` bytes on. What is there was checked for all of them.
    pub fn load(self, offset: usize, bytes: usize) -> u64 {
        let at = self.0 + offset as u64;
        // SAFETY: the bytes were found in a live allocation, and aligned. Other threads may write them: all accesses are atomic.
        unsafe {
            match bytes {
                1 => u64::from((*(at as *const AtomicU8)).load(Relaxed)),
                2 => u64::from((*(at as *const AtomicU16)).load(Relaxed)),
                4 => u64::from((*(at as *const AtomicU32)).load(Relaxed)),
                _ => (*(at as *const AtomicU64)).load(Relaxed),
            }
        }
    }

    /// Writes the low `bytes` bytes of `v`.
    pub fn store(self, offset: usize, bytes: usize, v: u64) {
        let at = self.0 + offset as u64;
        // SAFETY: as in `load`.
        unsafe {
            match bytes {
                1 => (*(at as *const AtomicU8)).store(v as u8, Relaxed),
                2 => (*(at as *const AtomicU16)).store(v as u16, Relaxed),
                4 => (*(at as *const AtomicU32)).store(v as u32, Relaxed),
                _ => (*(at as *const AtomicU64)).store(v, Relaxed),
            }
        }
    }

    /// Puts what `f` makes of the value, `offset` bytes on, in its place, and returns what was there.
    pub fn update(self, offset: usize, bytes: usize, f: impl Fn(u64) -> u64) -> u64 {
        let at = self.0 + offset as u64;
        // SAFETY: as in `load`.
        unsafe {
            match bytes {
                2 => u64::from((*(at as *const AtomicU16)).update(Relaxed, Relaxed, |v| f(u64::from(v)) as u16)),
                4 => u64::from((*(at as *const AtomicU32)).update(Relaxed, Relaxed, |v| f(u64::from(v)) as u32)),
                _ => (*(at as *const AtomicU64)).update(Relaxed, Relaxed, &f),
            }
        }
    }
}

impl Lanes<'_> {
    /// When a lane does something, for races.
    fn moment(&self, lane: usize) -> Moment {
        Moment {
            block: self.block.barriers,
            warp: self.warp.barriers,
            thread: (self.warp.index * super::WARP + lane) as u16,
        }
    }

    /// The place of `bytes` bytes, if a lane may do that there.
    ///
    /// # Errors
    /// Memory that isn't there or isn't aligned, a race, what was never written.
    #[inline]
    pub fn place(&mut self, lane: usize, space: Space, at: u64, bytes: usize, access: Access) -> Result<Place, Fault> {
        // All that is read and written at once is a power of two.
        if at & (bytes as u64 - 1) != 0 {
            return Err(Fault::new(Kind::Misaligned, lane, format!("{bytes} bytes at {at:#x}, which is not aligned")));
        }
        let outside = |what: &str, size: usize| {
            Fault::new(Kind::Address, lane, format!("{bytes} bytes at {at} of {size} bytes of {what}"))
        };
        let within = |at: u64, size: usize| at.checked_add(bytes as u64).is_some_and(|end| end <= size as u64);
        match space {
            Space::Generic if at & LOCAL != 0 => self.place(lane, Space::Local, at & !LOCAL, bytes, access),
            Space::Generic if at & SHARED != 0 => self.place(lane, Space::Shared, at & !SHARED, bytes, access),
            Space::Generic | Space::Global => {
                let end = at.wrapping_add(bytes as u64);
                match self.warp.recent[0].0 <= at && end <= self.warp.recent[0].1 && at < end {
                    true => Ok(Place(at)),
                    false => self.global(lane, at, bytes),
                }
            }
            Space::Shared => {
                // Addresses of shared memory have 32 bits.
                let at = at & 0xffff_ffff;
                if !within(at, self.block.shared_bytes) {
                    return Err(outside("shared memory", self.block.shared_bytes));
                }
                let now = self.moment(lane);
                let found = match access {
                    Access::Read => self.block.shadow.read(at as usize, bytes, now),
                    Access::Write => self.block.shadow.write(at as usize, bytes, now),
                    Access::Atomic => self.block.shadow.atomic(at as usize, bytes, now),
                    Access::Copy => self.block.shadow.copy(at as usize, bytes, now),
                    Access::Arrive => {
                        self.block.shadow.arrive(at as usize, bytes, now);
                        Ok(())
                    }
                };
                found.map_err(|what| Fault::new(Kind::Failed, lane, what))?;
                Ok(Place(self.block.shared.as_mut_ptr() as u64 + at))
            }
            Space::Local => {
                let size = self.launch.kernel.local;
                if !within(at, size) {
                    return Err(outside("local memory", size));
                }
                Ok(Place(self.warp.local.as_mut_ptr() as u64 + (lane * size.next_multiple_of(16)) as u64 + at))
            }
            Space::Param => {
                let size = self.launch.param_bytes;
                if !within(at, size) || access != Access::Read {
                    return Err(outside("parameters", size));
                }
                Ok(Place(self.launch.params.as_ptr() as u64 + at))
            }
        }
    }

    fn global(&mut self, lane: usize, at: u64, bytes: usize) -> Result<Place, Fault> {
        let end = at.wrapping_add(bytes as u64);
        let holds = |range: &(u64, u64)| range.0 <= at && end <= range.1 && at < end;
        if let Some(i) = self.warp.recent.iter().position(holds) {
            self.warp.recent.swap(0, i);
            return Ok(Place(at));
        }
        let ranges = &self.launch.ranges;
        let before = ranges.partition_point(|r| r.0 <= at);
        if let Some(range) = before.checked_sub(1).map(|i| ranges[i]).filter(holds) {
            self.warp.recent.rotate_right(1);
            self.warp.recent[0] = range;
            return Ok(Place(at));
        }
        let near = match before.checked_sub(1).map(|i| ranges[i]) {
            Some((from, to)) => format!("{} bytes into an allocation of {}", at - from, to - from),
            None => "in no allocation".into(),
        };
        Err(Fault::new(Kind::Address, lane, format!("{bytes} bytes at {at:#x}, {near}")))
    }
}
