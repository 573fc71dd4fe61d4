//! The memory of a process is that of all its threads: this test has a process to itself.

use compress_compiler::error::{Error, Result};
use compress_runtime::memory::{peak_of, watched};
use std::{hint::black_box, panic, thread, time::Duration};

#[test]
fn the_peak_is_that_of_the_work() {
    let (len, peak) = peak_of(|| Ok(vec![1u8; 64 << 20].len())).unwrap();
    assert!(len == 64 << 20 && peak.is_none_or(|p| (60 << 20..80 << 20).contains(&p)), "{peak:?}");
    // As on systems that know no peak.
    let (_, peak) = watched(|| {
        let held = vec![1u8; 64 << 20];
        thread::sleep(Duration::from_millis(50));
        Ok(black_box(held).len())
    })
    .unwrap();
    assert!(peak.is_some_and(|p| (60 << 20..80 << 20).contains(&p)), "{peak:?}");
    // Nothing waits for what failed.
    assert!(watched(|| -> Result<()> { Err(Error::interrupted()) }).is_err());
    assert!(panic::catch_unwind(|| watched(|| -> Result<()> { panic!("work") })).is_err());
}
