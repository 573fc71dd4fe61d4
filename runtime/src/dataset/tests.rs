//! Sets of arrays, from real files.

use super::{Dataset, InputSpec, Preprocess, Reading, testing::spec};
use compress_compiler::{
    error::{Error, Kind},
    tensor::DType,
};
use flate2::{Compression, write::GzEncoder};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};
use tempfile::TempDir;
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn npz(path: &Path, method: CompressionMethod, arrays: &[(&str, Vec<u8>)]) {
    let mut zip = ZipWriter::new(File::create(path).unwrap());
    for (name, bytes) in arrays {
        let options = SimpleFileOptions::default().compression_method(method);
        zip.start_file(format!("{name}.npy"), options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

fn idx(shape: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, shape.len() as u8];
    bytes.extend(shape.iter().flat_map(|d| d.to_be_bytes()));
    bytes.extend(data);
    bytes
}

fn gzip(path: &Path, bytes: &[u8]) {
    let mut gz = GzEncoder::new(File::create(path).unwrap(), Compression::default());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap();
}

fn fails(path: &Path, inputs: &[InputSpec]) -> Error {
    let e = Dataset::open(path, inputs, &Reading::default()).err().expect("must be refused");
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(e.to_string().contains(name), "no file named: {e}");
    e
}

/// A file that must be refused as broken data, with a reason that contains `reason`.
fn refuses(dir: &TempDir, name: &str, bytes: &[u8], inputs: &[InputSpec], reason: &str) {
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    let e = fails(&path, inputs);
    assert!(e.kind() == Kind::Data && e.to_string().contains(reason), "{reason}: {e}");
}

fn two() -> [InputSpec; 1] {
    [spec("in", &[None, Some(2)])]
}

#[test]
fn npz_is_read_stored_and_deflated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("set.npz");
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let x = npy("<f4", "3, 2", &floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        npz(&path, method, &[("x", x), ("y", npy("<i4", "3, 1", &[7, 0, 0, 0, 8, 0, 0, 0, 255, 255, 255, 255]))]);
        let set = Dataset::open(&path, &two(), &Reading::default()).unwrap();
        assert_eq!(set.describe(), "3 labelled samples from set.npz");
        let batch = set.batch(&[2, 0, 2]).unwrap();
        assert_eq!(*batch.inputs[0].as_f32().unwrap(), [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
        assert_eq!((batch.labels, batch.len), (Some(vec![-1, 7, -1]), 3));
        assert_eq!(set.batch(&[3]).err().unwrap().kind(), Kind::Bug);
        assert_eq!(set.batch(&[]).err().unwrap().kind(), Kind::Bug);
    }
}

#[test]
fn npz_feeds_several_inputs_and_casts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("set.npz");
    let wide: Vec<u8> = [0.5f64, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let arrays =
        [("a", npy("<f8", "2, 1", &wide)), ("b", npy("<i2", "2,", &[200, 0, 1, 0])), ("y", npy("|u1", "2,", &[1, 2]))];
    npz(&path, CompressionMethod::Deflated, &arrays);
    let mut specs = [spec("b", &[None]), spec("a", &[None, Some(1)]), spec("y", &[None])];
    specs[0].dtype = DType::U8;
    specs[1].dtype = DType::F16;
    let set = Dataset::open(&path, &specs, &Reading::default()).unwrap();
    let batch = set.batch(&[0, 1]).unwrap();
    assert_eq!(batch.inputs[0].as_i64().unwrap(), [200, 1]);
    assert_eq!(*batch.inputs[1].as_f32().unwrap(), [0.5, -2.0]);
    assert_eq!(*batch.inputs[2].as_f32().unwrap(), [1.0, 2.0]);
    assert_eq!(batch.labels, None, "`y` is an input here");

    specs[0].dtype = DType::I8;
    let set = Dataset::open(&path, &specs, &Reading::default()).unwrap();
    let e = set.batch(&[1, 0]).err().unwrap();
    assert!(e.to_string().contains("array `b`, sample 0: 200"), "{e}");
    specs[1].dtype = DType::I32;
    assert!(fails(&path, &specs).message().contains("f64"));
    specs[0].name = "c".to_owned();
    let e = fails(&path, &specs);
    assert!(e.message().contains("has `a`, `b`, `y`; the model takes `c`, `a`, `y`"), "{e}");
}

#[test]
fn arrays_that_disagree_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("set.npz");
    let x = npy("<f4", "2, 2", &floats(&[0.0; 4]));
    for (labels, reason) in [
        (npy("|u1", "3,", &[0; 3]), "2 samples but `y` has 3"),
        (npy("|u1", "2, 2", &[0; 4]), "shape [2, 2]"),
        (npy("<f4", "2,", &[0; 8]), "astype"),
    ] {
        npz(&path, CompressionMethod::Stored, &[("in", x.clone()), ("y", labels)]);
        let e = fails(&path, &two());
        assert!(e.kind() == Kind::Data && e.to_string().contains(reason), "{e}");
    }
    npz(&path, CompressionMethod::Stored, &[("other", x)]);
    assert!(fails(&path, &two()).message().contains("`other`"));
    fs::write(&path, "PK, or not").unwrap();
    assert_eq!(fails(&path, &two()).kind(), Kind::Data);
}

#[test]
fn npy_that_cannot_be_right_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let good = npy("<f4", "1, 2", &[0; 8]);
    let path = dir.path().join("x.npy");
    fs::write(&path, &good).unwrap();
    assert!(Dataset::open(&path, &two(), &Reading::default()).is_ok());
    let replaced = |from: &str, to: &str| {
        let text: String = good[10..].iter().map(|b| *b as char).collect::<String>().replace(from, to);
        let mut bytes = good[..8].to_vec();
        bytes.extend(((text.len() - 8) as u16).to_le_bytes());
        bytes.extend(text.chars().map(|c| c as u8));
        bytes
    };
    for (bytes, reason) in [
        (good[..good.len() - 1].to_vec(), "8 bytes, but 7"),
        (good[..30].to_vec(), "too early"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(), "header of"),
        (b"nothing of the kind".to_vec(), "mark"),
        (replaced("False", "True"), "ascontiguousarray"),
        (replaced("<f4", ">f4"), "astype('<f4')"),
        (replaced("<f4", "<c8"), "`<c8`"),
        (replaced("'<f4'", "[('a', '<f4')]"), "records"),
        (replaced("(1, 2)", "(1, 2"), "`shape`"),
        (replaced("(1, 2)", "(-1, 2)"), "`shape`"),
        (npy("<f4", "", &[0; 4]), "count the samples"),
        (npy("<f4", "0, 2", &[]), "no samples"),
        (npy("<f4", "1, 0", &[]), "empty"),
        (npy("<f4", "4611686018427387904, 4611686018427387904", &[]), "impossible"),
        (npy("<f4", "1, 3", &[0; 12]), "[N, 3], but the model takes [N, 2]"),
    ] {
        refuses(&dir, "x.npy", &bytes, &two(), reason);
    }
    let picture = [spec("in", &[None, Some(3), Some(4), Some(5)])];
    refuses(&dir, "x.npy", &npy("|u1", "1, 4, 5, 3", &[0; 60]), &picture, "transpose");
    let both = [spec("a", &[None]), spec("b", &[None])];
    refuses(&dir, "x.npy", &good, &both, "2 inputs");
}

#[test]
fn a_nan_is_named_with_its_sample() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    fs::write(&path, npy("<f4", "2, 2", &floats(&[0.0, 1.0, f32::INFINITY, 1.0]))).unwrap();
    let set = Dataset::open(&path, &two(), &Reading::default()).unwrap();
    assert!(set.batch(&[0]).is_ok());
    let e = set.batch(&[0, 1]).err().unwrap();
    assert!(e.kind() == Kind::Data && e.to_string().contains("`in`, sample 1"), "{e}");

    fs::write(&path, npy("<f8", "1, 2", &1e300f64.to_le_bytes().repeat(2))).unwrap();
    let e = Dataset::open(&path, &two(), &Reading::default()).unwrap().batch(&[0]).err().unwrap();
    assert!(e.message().contains("too large"), "{e}");
}

#[test]
fn preprocessing_goes_channel_by_channel() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    fs::write(&path, npy("|u1", "1, 2, 1, 2", &[0, 255, 51, 102])).unwrap();
    let specs = [spec("in", &[None, Some(2), None, Some(2)])];
    let values = |p: Option<&str>| {
        let p = p.map(|p| p.parse::<Preprocess>().unwrap());
        let batch = Dataset::open(&path, &specs, &Reading { preprocess: p, ..Reading::default() })
            .unwrap()
            .batch(&[0])
            .unwrap();
        batch.inputs[0].as_f32().unwrap().into_owned()
    };
    assert_eq!(values(None), [0.0, 255.0, 51.0, 102.0]);
    assert_eq!(values(Some("mean=0")), [0.0, 1.0, 0.2, 0.4]);
    assert_eq!(values(Some("scale=1,mean=1:2,std=2:4")), [-0.5, 127.0, 12.25, 25.0]);
    let p: Preprocess = "imagenet".parse().unwrap();
    let e = Dataset::open(&path, &specs, &p.clone().into()).err().unwrap();
    assert!(e.message().contains("3 channels"), "{e}");
    let mut whole = specs.clone();
    whole[0].dtype = DType::U8;
    assert_eq!(Dataset::open(&path, &whole, &p.clone().into()).err().unwrap().kind(), Kind::Usage);
    let set = Dataset::open(&path, &whole, &Reading::default()).unwrap();
    assert_eq!(set.batch(&[0]).unwrap().inputs[0].bytes(), [0, 255, 51, 102]);
}

fn mnist(dir: &TempDir, name: &str) -> PathBuf {
    dir.path().join(name)
}

#[test]
fn idx_is_found_by_file_folder_and_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let pictures = idx(&[2, 1, 3], &[0, 51, 255, 102, 0, 0]);
    fs::write(mnist(&dir, "a-train-images-idx3-ubyte"), &pictures).unwrap();
    gzip(&mnist(&dir, "a-train-images-idx3-ubyte.gz"), &pictures);
    gzip(&mnist(&dir, "a-train-labels-idx1-ubyte.gz"), &idx(&[2], &[9, 4]));
    let specs = [spec("in", &[Some(1), Some(1), Some(1), Some(3)])];
    for path in ["a-train-images-idx3-ubyte", "a-train-images-idx3-ubyte.gz", "a-train", ""] {
        let set = Dataset::open(&mnist(&dir, path), &specs, &Reading::default()).unwrap();
        let batch = set.batch(&[1, 0]).unwrap();
        assert_eq!(batch.inputs[0].shape(), [2, 1, 1, 3]);
        assert_eq!(*batch.inputs[0].as_f32().unwrap(), [0.4, 0.0, 0.0, 0.0, 0.2, 1.0]);
        assert_eq!(batch.labels, Some(vec![4, 9]), "{path}");
        assert_eq!(set.digest().unwrap().len(), 64);
    }
    gzip(&mnist(&dir, "a-t10k-images-idx3-ubyte.gz"), &pictures);
    let e = fails(dir.path(), &specs);
    assert!(e.message().contains("2 sets: a-t10k-images-idx3-ubyte.gz, a-train"), "{e}");
    assert!(fails(&mnist(&dir, "a-t"), &specs).message().contains("2 sets"));
    let set = Dataset::open(&mnist(&dir, "a-t10k"), &specs, &Reading::default()).unwrap();
    assert_eq!(set.describe(), "2 samples from a-t10k-images-idx3-ubyte.gz");
    let e = fails(&mnist(&dir, "b"), &specs);
    assert!(e.kind() == Kind::File && e.to_string().contains("npz"), "{e}");
    let e = fails(&mnist(&dir, "a-train-labels-idx1-ubyte.gz"), &specs);
    assert!(e.to_string().contains("name the file with the pictures"), "{e}");
}

#[test]
fn idx_that_does_not_add_up_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let specs = [spec("in", &[None, None, Some(2), Some(2)])];
    let whole = idx(&[2, 2, 2], &[1; 8]);
    let name = "x-images-idx3-ubyte";
    refuses(&dir, name, &whole[..whole.len() - 1], &specs, "8 bytes, but 7");
    refuses(&dir, name, &whole[..9], &specs, "too early");
    refuses(&dir, name, &idx(&[u32::MAX; 3], &[]), &specs, "impossible");
    refuses(&dir, name, &idx(&[0, 2, 2], &[]), &specs, "no samples");
    refuses(&dir, name, &idx(&[1, 2, 3], &[0; 6]), &specs, "[N, 2, 3]");
    refuses(&dir, name, &[0, 0, 13, 3, 0, 0, 0, 1], &specs, "of no known format");
    for (bytes, reason) in [
        (whole[..whole.len() - 1].to_vec(), "but has 7"),
        ([&whole[..], &[0]].concat(), "but has more"),
        (idx(&[0x4000_0000, 2, 2], &[]), "compressed"),
    ] {
        gzip(&mnist(&dir, "y-images-idx3-ubyte.gz"), &bytes);
        let e = fails(&mnist(&dir, "y-images-idx3-ubyte.gz"), &specs);
        assert!(e.kind() == Kind::Data && e.message().contains(reason), "{reason}: {e}");
    }
    let mut damaged = fs::read(mnist(&dir, "y-images-idx3-ubyte.gz")).unwrap();
    damaged.truncate(damaged.len() - 6);
    refuses(&dir, "y-images-idx3-ubyte.gz", &damaged, &specs, "");

    fs::write(mnist(&dir, name), &whole).unwrap();
    fs::write(mnist(&dir, "x-labels-idx1-ubyte"), idx(&[3], &[0; 3])).unwrap();
    let e = Dataset::open(&mnist(&dir, name), &specs, &Reading::default()).err().unwrap();
    assert!(e.to_string().contains("x-labels-idx1-ubyte: it has 3 labels, but"), "{e}");
}

#[test]
fn what_is_not_data_is_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.txt", "b.png", "c.pb"] {
        refuses(&dir, name, b"text", &two(), "help");
    }
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(fails(&empty, &two()).to_string().contains("npz"));
    assert_eq!(fails(Path::new("/dev/null"), &two()).kind(), Kind::Data);
    assert!(Dataset::open(&empty, &[], &Reading::default()).is_err());
}
