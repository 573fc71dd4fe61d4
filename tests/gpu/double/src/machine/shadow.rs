//! Who wrote and read each byte of a block's shared memory last: what was never written, and what two threads touch without a
//! barrier between them.
//!
//! Barriers of the block separate what all its threads do, those of a warp what its lanes do. Two accesses race if they are of
//! different threads, one of them writes, and nothing separates them. A copy that is under way writes until it was
//! waited for. Barriers that only a part of the block takes part in separate as if all did, so that some races are missed; none is
//! made up.

/// When a thread does something, between which barriers.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Barriers of the block so far; it grows from block to block too.
    pub block: u32,
    /// Barriers of the warp since then.
    pub warp: u32,
    /// The thread in its block.
    pub thread: u16,
}

/// Several threads of one warp, in the place of a thread.
const SEVERAL: u64 = 0x8000;

/// Threads of several warps, in the place of a thread.
const MANY: u64 = 0xffff;

/// A copy by a thread that hasn't waited for it, beside the thread.
const UNDER_WAY: u64 = 0x4000;

impl Moment {
    fn packed(self) -> u64 {
        u64::from(self.block) << 36 | u64::from(self.warp.min((1 << 20) - 1)) << 16 | u64::from(self.thread)
    }
}

fn block(entry: u64) -> u64 {
    entry >> 36
}

fn warp_of(thread: u64) -> u64 {
    if thread & SEVERAL != 0 { thread & !SEVERAL } else { thread / 32 }
}

/// Whether what `entry` says happened is not separated from what happens `now`.
fn races(entry: u64, now: Moment) -> bool {
    let thread = entry & 0xffff;
    if block(entry) != u64::from(now.block) || thread == u64::from(now.thread) {
        return false;
    }
    thread == MANY
        || warp_of(thread) != u64::from(now.thread) / 32
        || entry >> 16 & ((1 << 20) - 1) == u64::from(now.warp)
}

/// The last writer and the readers of each byte.
#[derive(Debug)]
pub struct Shadow {
    written: Vec<u64>,
    read: Vec<u64>,
    /// The number of barriers when the block began: what was written before is of another block.
    began: u32,
}

impl Shadow {
    /// That of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { written: vec![0; bytes], read: vec![0; bytes], began: 1 }
    }

    /// A block begins: nothing is written.
    pub fn begin(&mut self, barriers: u32) {
        self.began = barriers;
    }

    /// A thread reads.
    ///
    /// # Errors
    /// What is wrong with that.
    pub fn read(&mut self, at: usize, bytes: usize, now: Moment) -> Result<(), String> {
        let mine = now.packed();
        for i in at..at + bytes {
            let written = self.written[i];
            if block(written) < u64::from(self.began) {
                return Err(format!("byte {i} of shared memory is read and was never written"));
            }
            self.waited(i, now)?;
            if races(written, now) {
                return Err(format!(
                    "thread {} reads byte {i} of shared memory, which thread {} wrote, without a barrier",
                    now.thread,
                    written & 0xffff
                ));
            }
            let read = self.read[i];
            let thread = read & 0xffff;
            self.read[i] = if block(read) != block(mine) || thread == u64::from(now.thread) {
                mine
            } else if thread != MANY && warp_of(thread) == u64::from(now.thread) / 32 {
                // Of readers of one warp the last count: those before a barrier of the warp are separated from it.
                let several = read >> 16 == mine >> 16;
                if several { mine & !0xffff | SEVERAL | (u64::from(now.thread) / 32) } else { mine }
            } else {
                mine & !0xffff | MANY
            };
        }
        Ok(())
    }

    /// A thread writes.
    ///
    /// # Errors
    /// What is wrong with that.
    pub fn write(&mut self, at: usize, bytes: usize, now: Moment) -> Result<(), String> {
        for i in at..at + bytes {
            self.waited(i, now)?;
            if races(self.written[i], now) {
                let other = self.written[i] & 0xffff;
                return Err(format!(
                    "threads {} and {other} write byte {i} of shared memory without a barrier",
                    now.thread
                ));
            }
            if races(self.read[i], now) {
                return Err(format!(
                    "thread {} writes byte {i} of shared memory, which others read, without a barrier",
                    now.thread
                ));
            }
            self.written[i] = now.packed();
        }
        Ok(())
    }

    /// A thread changes bytes at once: others that do so don't race with it. Those that only read after it are not looked at.
    ///
    /// # Errors
    /// What is wrong with that.
    pub fn atomic(&mut self, at: usize, bytes: usize, now: Moment) -> Result<(), String> {
        for i in at..at + bytes {
            if block(self.written[i]) < u64::from(self.began) {
                return Err(format!("byte {i} of shared memory is changed and was never written"));
            }
            self.waited(i, now)?;
            if races(self.written[i], now) {
                return Err(format!(
                    "thread {} changes byte {i} of shared memory, which another wrote, without a barrier",
                    now.thread
                ));
            }
        }
        Ok(())
    }

    /// A thread begins a copy, which writes at any time until the thread has waited for it.
    ///
    /// # Errors
    /// What is wrong with that.
    pub fn copy(&mut self, at: usize, bytes: usize, now: Moment) -> Result<(), String> {
        self.write(at, bytes, now)?;
        self.written[at..at + bytes].iter_mut().for_each(|entry| *entry |= UNDER_WAY);
        Ok(())
    }

    /// The thread has waited for its copy. What others did to the bytes meanwhile was found when they did.
    pub fn arrive(&mut self, at: usize, bytes: usize, now: Moment) {
        self.written[at..at + bytes].fill(now.packed());
    }

    /// Whether no copy to a byte is under way.
    fn waited(&self, i: usize, now: Moment) -> Result<(), String> {
        let entry = self.written[i];
        if entry & UNDER_WAY == 0 || block(entry) < u64::from(self.began) {
            return Ok(());
        }
        let (thread, other) = (now.thread, entry & 0xffff & !UNDER_WAY);
        Err(format!(
            "thread {thread} touches byte {i} of shared memory, a copy to which thread {other} hasn't waited for"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(block: u32, warp: u32, thread: u16) -> Moment {
        Moment { block, warp, thread }
    }

    #[test]
    fn what_was_not_written_is_not_read() {
        let mut s = Shadow::new(8);
        s.begin(5);
        assert!(s.read(0, 4, at(5, 0, 1)).unwrap_err().contains("never written"));
        s.write(0, 4, at(5, 0, 1)).unwrap();
        s.read(0, 4, at(5, 0, 1)).unwrap();
        assert!(s.read(2, 4, at(5, 0, 1)).is_err());
        // The next block finds nothing.
        s.begin(6);
        assert!(s.read(0, 4, at(6, 0, 1)).is_err());
    }

    #[test]
    fn barriers_separate_a_writer_from_readers() {
        let mut s = Shadow::new(4);
        s.write(0, 4, at(1, 0, 0)).unwrap();
        assert!(s.read(0, 4, at(1, 0, 1)).is_err());
        // A barrier of the warp is enough for its lanes, and isn't for others.
        s.read(0, 4, at(1, 1, 1)).unwrap();
        assert!(s.read(0, 4, at(1, 1, 40)).is_err());
        s.read(0, 4, at(2, 0, 40)).unwrap();
    }

    #[test]
    fn barriers_separate_readers_from_a_writer() {
        let mut s = Shadow::new(4);
        s.write(0, 4, at(1, 0, 0)).unwrap();
        // Several of one warp read, the writer among them: it may write again after a barrier of the warp.
        s.read(0, 4, at(2, 0, 0)).unwrap();
        s.read(0, 4, at(2, 0, 1)).unwrap();
        assert!(s.write(0, 4, at(2, 0, 0)).is_err());
        assert!(s.write(0, 4, at(2, 0, 40)).is_err());
        s.write(0, 4, at(2, 1, 0)).unwrap();
        // Threads of two warps.
        s.read(0, 4, at(3, 0, 0)).unwrap();
        s.read(0, 4, at(3, 0, 40)).unwrap();
        assert!(s.write(0, 4, at(3, 1, 0)).is_err());
        s.write(0, 4, at(4, 0, 0)).unwrap();
        assert!(s.write(0, 4, at(4, 0, 33)).is_err());
    }
}
