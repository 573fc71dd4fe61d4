//! The memory that loading takes. Alone in its process, so that nothing else counts.

use compress_compiler::{tensor::DType, value::Dim};
use compress_runtime::{
    dataset::{Dataset, InputSpec, Reading},
    train::loader::{Loader, LoaderOptions, Share},
};
use std::{
    fs::{self, File},
    io::Write,
    sync::Arc,
};

const SAMPLES: usize = 17_000;
const SHAPE: [usize; 3] = [3, 32, 32];

/// What this process has in memory that is not a file's, in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn memory_is_that_of_a_few_batches_however_large_the_set() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    let [c, h, w] = SHAPE;
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({SAMPLES}, {c}, {h}, {w}), }}\n");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"\x93NUMPY\x01\x00").unwrap();
    file.write_all(&(header.len() as u16).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    // Sparse: it takes no space on the disk.
    let sample = c * h * w * 4;
    file.set_len((10 + header.len() + SAMPLES * sample) as u64).unwrap();
    drop(file);

    let shape = vec![Dim::Unknown, Dim::from(c), Dim::from(h), Dim::from(w)];
    let spec = InputSpec::new("x", DType::F32, shape);
    let set = Arc::new(Dataset::open(&path, &[spec], &Reading::default()).unwrap());
    let options = LoaderOptions {
        batch: 32,
        seed: 0,
        workers: 2,
        prefetch: 4,
        augment: "flip,crop=4,mixup=0.2".parse().unwrap(),
        shuffle: true,
        drop_last: false,
        share: Share::default(),
    };
    // A quarter of the 209 MB, from all over the set.
    let samples: Vec<usize> = (0..SAMPLES).step_by(4).collect();
    let loader = Loader::new(set, samples.clone(), options).unwrap();
    let before = resident();
    let (mut peak, mut seen) = (before, 0);
    for batch in loader.epoch(0, 0).unwrap() {
        seen += batch.unwrap().len;
        peak = peak.max(resident());
    }
    assert_eq!(seen, samples.len());
    let (grown, read) = (peak - before, samples.len() * sample);
    println!("{:.1} MB for {:.1} MB of data", grown as f64 / 1e6, read as f64 / 1e6);
    assert!(grown < 12 << 20, "{grown} bytes");
}
