use super::*;
use serde_json::json;
use std::process::Command;

fn checkpoint(step: u64) -> Checkpoint {
    let floats: Vec<f32> = (0..600).map(|i| (i as f32 + step as f32).sin()).collect();
    Checkpoint {
        step,
        epoch: step / 10,
        batch: step % 10,
        digest: "recipe".into(),
        // The second can't be parsed by a reader that is off by a bit.
        state: json!({ "scale": 65536.0, "best": 0.937_425_101_108_742_1_f64, "seeds": [u64::MAX] }),
        tensors: vec![
            ("weight".into(), Tensor::f32(&[2, 300], &floats)),
            ("odd".into(), Tensor::f32(&[3], &[f32::NAN, f32::MIN_POSITIVE, -0.0])),
            ("seen".into(), Tensor::i64s(&[i64::MIN, 7])),
            ("a scalar".into(), Tensor::f32(&[], &[1.5])),
            ("nothing".into(), Tensor::f32(&[0, 5], &[])),
        ],
    }
}

/// Compares bytes: one of the values is not a number.
fn same(a: &Checkpoint, b: &Checkpoint) {
    let heads = [a, b].map(|c| (c.step, c.epoch, c.batch, c.digest.clone(), c.state.clone()));
    assert_eq!(heads[0], heads[1]);
    let [x, y] = [a, b].map(|c| c.tensors.iter().map(|(n, t)| (n, t.dtype(), t.shape(), t.bytes())));
    assert!(x.eq(y));
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Puts the right sum under what was changed.
fn seal(bytes: &mut [u8]) {
    let at = bytes.len() - SUM_BYTES;
    let (body, sum) = bytes.split_at_mut(at);
    sum.copy_from_slice(&Sha256::digest(body));
}

#[test]
fn comes_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("new/folder");
    let saved = checkpoint(31);
    let kept = Checkpoints::open(&deep).unwrap();
    assert!(kept.latest("recipe").unwrap().is_none());
    let path = kept.save(&saved).unwrap();
    let (found, warnings) = kept.latest("recipe").unwrap().unwrap();
    same(&found, &saved);
    assert!(warnings.is_empty());

    // Other programs can read it.
    let bytes = fs::read(&path).unwrap();
    let others = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(others.tensor("weight").unwrap().data(), saved.tensors[0].1.bytes());
    assert_eq!(others.tensor("weight").unwrap().shape(), [2, 300]);
    assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()) % 8, 0);

    let again = kept.save(&saved).unwrap();
    assert_eq!(fs::read(again).unwrap(), bytes, "the same checkpoint is the same file");
}

#[test]
fn two_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let kept = Checkpoints::open(folder.path()).unwrap();
    fs::write(folder.path().join("checkpoint-best.safetensors"), "a copy").unwrap();
    fs::write(folder.path().join("checkpoint-5.safetensors"), "another copy").unwrap();
    // A step that comes twice leaves the one before it.
    for step in [5, 9, 10, 100_000, 100_000] {
        kept.save(&checkpoint(step)).unwrap();
    }
    let expected = [
        ".lock",
        "checkpoint-000000000010.safetensors",
        "checkpoint-000000100000.safetensors",
        "checkpoint-5.safetensors",
        "checkpoint-best.safetensors",
    ];
    assert_eq!(names(folder.path()), expected);
    assert_eq!(kept.latest("recipe").unwrap().unwrap().0.step, 100_000);
    kept.clear().unwrap();
    assert!(kept.latest("recipe").unwrap().is_none());
    assert_eq!(names(folder.path()).len(), 3);
}

#[test]
fn a_new_job_replaces_an_old_one() {
    let folder = tempfile::tempdir().unwrap();
    Checkpoints::open(folder.path()).unwrap().save(&checkpoint(90)).unwrap();
    let fresh = Checkpoints::open(folder.path()).unwrap();
    fresh.save(&checkpoint(4)).unwrap();
    assert_eq!(fresh.latest("recipe").unwrap().unwrap().0.step, 4);
}

#[test]
fn a_damaged_one_is_skipped_then_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let kept = Checkpoints::open(folder.path()).unwrap();
    kept.save(&checkpoint(10)).unwrap();
    let newest = kept.save(&checkpoint(20)).unwrap();
    let whole = fs::read(&newest).unwrap();
    fs::write(&newest, &whole[..whole.len() / 2]).unwrap();
    drop(kept);

    let kept = Checkpoints::open(folder.path()).unwrap();
    let (found, warnings) = kept.latest("recipe").unwrap().unwrap();
    same(&found, &checkpoint(10));
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains(newest.to_str().unwrap()) && warnings[0].contains("damaged"), "{warnings:?}");
    // It counts as none of the two, though it is newer than what is written now.
    kept.save(&checkpoint(15)).unwrap();
    let expected = [".lock", "checkpoint-000000000010.safetensors", "checkpoint-000000000015.safetensors"];
    assert_eq!(names(folder.path()), expected);

    for name in &names(folder.path())[1..] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let e = kept.latest("recipe").unwrap_err();
    assert_eq!(e.kind(), Kind::File);
    assert!(e.to_string().contains("0015") && e.to_string().contains("0010"), "{e}");
}

#[test]
fn a_renamed_one_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let kept = Checkpoints::open(folder.path()).unwrap();
    kept.save(&checkpoint(10)).unwrap();
    let newest = kept.save(&checkpoint(20)).unwrap();
    fs::rename(newest, kept.path(30)).unwrap();
    let (found, warnings) = kept.latest("recipe").unwrap().unwrap();
    assert_eq!(found.step, 10);
    assert!(warnings[0].contains("of step 20"), "{warnings:?}");
}

#[test]
fn another_recipe_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let kept = Checkpoints::open(folder.path()).unwrap();
    kept.save(&checkpoint(10)).unwrap();
    let e = kept.latest("a different one").unwrap_err();
    assert_eq!(e.kind(), Kind::Usage);
    for part in ["recipe recipe", "a different one", "`checkpoint`", "`force`"] {
        assert!(e.to_string().contains(part), "{e}");
    }
}

#[test]
fn one_job_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = Checkpoints::open(folder.path()).unwrap();
    let e = Checkpoints::open(folder.path()).unwrap_err();
    assert_eq!(e.kind(), Kind::File);
    assert!(e.to_string().contains("another training job"), "{e}");
    drop(first);
    fs::write(folder.path().join(".checkpoint-x1y2z3"), "left by a job that was killed").unwrap();
    Checkpoints::open(folder.path()).unwrap();
    assert_eq!(names(folder.path()), [".lock"]);
}

#[test]
fn what_cannot_be_described_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let kept = Checkpoints::open(folder.path()).unwrap();
    let mut twice = checkpoint(1);
    twice.tensors.push(("weight".into(), Tensor::f32(&[1], &[0.0])));
    let mut narrow = checkpoint(1);
    narrow.tensors.push(("bytes".into(), Tensor::ints(DType::U8, &[1], &[0])));
    for wrong in [twice, narrow] {
        assert_eq!(kept.save(&wrong).unwrap_err().kind(), Kind::Bug);
    }
    assert_eq!(names(folder.path()), [".lock"]);
}

fn file_of_ten() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    fs::read(Checkpoints::open(folder.path()).unwrap().save(&checkpoint(10)).unwrap()).unwrap()
}

fn parse(bytes: &[u8]) -> Result<Checkpoint> {
    read_from(bytes, bytes.len() as u64, Path::new("x"), 10)
}

#[test]
fn any_change_of_the_bytes_is_found() {
    let whole = file_of_ten();
    let changed = |bytes: &[u8], what: &str| {
        let e = parse(bytes).expect_err(what);
        assert_eq!(e.kind(), Kind::File, "{what}: {e}");
    };
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        changed(&bytes, &format!("byte {at} changed"));
    }
    for length in 0..whole.len() {
        changed(&whole[..length], &format!("cut to {length}"));
    }
    changed(&[&whole[..], b"x"].concat(), "a byte more");
}

#[test]
fn hostile_bytes_never_panic() {
    let whole = file_of_ten();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    // With a right sum, so that what the header says is looked at.
    for at in 0..header {
        for with in [b'9', b'"', b'-', b'{', 0, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = with;
            seal(&mut bytes);
            let _ = parse(&bytes);
        }
    }
    let sum = format!(r#""{SUM}":{{"dtype":"U8","shape":[32],"data_offsets":[0,32]}}"#);
    let hostile = [
        r#"{"a":{"dtype":"F32","shape":[0,18446744073709551615,2],"data_offsets":[0,0]},SUM}"#.to_owned(),
        r#"{"a":{"dtype":"F32","shape":[18446744073709551615,2,0],"data_offsets":[0,0]},SUM}"#.to_owned(),
        r#"{"a":{"dtype":"F32","shape":[9007199254740992],"data_offsets":[32,36028797018964000]},SUM}"#.to_owned(),
        r#"{"a":{"dtype":"F4","shape":[1],"data_offsets":[32,32]},SUM}"#.to_owned(),
        r#"{"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}"#.to_owned(),
        r#"{"__metadata__":{"compress-checkpoint-1":"null"},SUM}"#.to_owned(),
        r#"{"__metadata__":{"compress-checkpoint-1":1},SUM}"#.to_owned(),
        r#"{SUM}"#.to_owned(),
        "{}".to_owned(),
        String::new(),
        "[".repeat(1 << 20),
    ];
    for text in hostile {
        let text = text.replace("SUM", &sum);
        let mut bytes = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &[0; 32]].concat();
        seal(&mut bytes);
        parse(&bytes).unwrap_err();
    }
    // A header that promises more than anyone has is not made room for.
    for size in [u64::MAX, i64::MAX as u64, 1 << 40, HEADER_LIMIT as u64] {
        let bytes = [&size.to_le_bytes()[..], b"{}"].concat();
        assert!(parse(&bytes).unwrap_err().to_string().contains("a header of"));
    }
}

/// Set for the copy of this program that may not write long files.
const CHILD: &str = "COMPRESS_TEST_SHORT_FILES";

#[test]
fn a_failed_write_leaves_the_old_ones() {
    if let Ok(folder) = std::env::var(CHILD) {
        let kept = Checkpoints::open(Path::new(&folder)).unwrap();
        assert_eq!(kept.latest("recipe").unwrap().unwrap().0.step, 20);
        let mut large = checkpoint(30);
        large.tensors.push(("large".into(), Tensor::f32(&[100_000], &[1.0; 100_000])));
        let e = kept.save(&large).unwrap_err();
        assert_eq!(e.kind(), Kind::File);
        assert!(e.to_string().contains("cannot write") && e.to_string().contains("000030"), "{e}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let kept = Checkpoints::open(folder.path()).unwrap();
    kept.save(&checkpoint(10)).unwrap();
    kept.save(&checkpoint(20)).unwrap();
    drop(kept);
    let before = names(folder.path());

    // Files end at 64 blocks, and writing on is an error, as on a full disk.
    let child = Command::new("sh")
        .args(["-c", r#"trap "" XFSZ; ulimit -f 64; exec "$0" --exact "$1""#])
        .arg(std::env::current_exe().unwrap())
        .arg("train::checkpoint::tests::a_failed_write_leaves_the_old_ones")
        .env(CHILD, folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(names(folder.path()), before);
    same(&Checkpoints::open(folder.path()).unwrap().latest("recipe").unwrap().unwrap().0, &checkpoint(20));
}
