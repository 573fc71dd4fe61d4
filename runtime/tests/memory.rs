//! The memory of a process is that of all its threads: this test has a process to itself.

use compress_runtime::memory::peak_of;

#[test]
fn the_peak_is_that_of_the_work() {
    let (len, peak) = peak_of(|| Ok(vec![1u8; 64 << 20].len())).unwrap();
    assert!(len == 64 << 20 && peak.is_none_or(|p| (60 << 20..80 << 20).contains(&p)), "{peak:?}");
}
