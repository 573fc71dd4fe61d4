//! What a training job says of its course, for other programs: one JSON object a line.

use compress_compiler::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// No record is as long: a line that is was not written by us.
const LINE_LIMIT: u64 = 1 << 20;

/// A file of records, each an object with at least `step`, in the order of the steps.
#[derive(Debug)]
pub struct MetricsLog {
    file: File,
    path: PathBuf,
}

/// A step and, as several batches may make one, the epoch and the batch in it.
pub type LogPosition = (u64, u64, u64);

/// What is asked of each record: a step. Where it tells its epoch and batch, they count too.
#[derive(Deserialize)]
struct Placed {
    step: u64,
    #[serde(default)]
    epoch: u64,
    #[serde(default)]
    batch: u64,
}

impl MetricsLog {
    /// Opens the log. A job that begins (`resumed` is `None`) begins it anew. One that goes on
    /// after a place keeps the records up to that place: the first record of a later one, or the
    /// first line that is not a record, and all behind it go, as those batches are done again.
    ///
    /// # Errors
    /// File, when it can't be read or written.
    pub fn open(path: &Path, resumed: Option<LogPosition>) -> Result<Self> {
        let open = || {
            let mut file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
            let end = resumed.map_or(Ok(0), |place| whole_until(&file, place))?;
            file.set_len(end)?;
            file.seek(SeekFrom::Start(end))?;
            Ok(file)
        };
        let file = open()
            .map_err(|e: io::Error| Error::file(format!("cannot open the log of the training: {e}")).in_file(path))?;
        Ok(Self { file, path: path.to_path_buf() })
    }

    /// Appends a record, which is in the file when this returns. Numbers that aren't finite
    /// become `null`.
    ///
    /// # Errors
    /// File, when it can't be written; what is there of it goes when the log is opened again. Bug,
    /// when it isn't an object with a step.
    pub fn record(&mut self, record: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(record).map_err(|e| Error::bug(format!("a record of the log: {e}")))?;
        line.push(b'\n');
        if !line.starts_with(b"{") || place_of(&line).is_none() {
            return Err(Error::bug("a record of the log without a step"));
        }
        self.file.write_all(&line).map_err(|e| self.failure(e))
    }

    /// Waits until all records are on the disk, as before a checkpoint that relies on them.
    ///
    /// # Errors
    /// File, when the disk can't take them.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| self.failure(e))
    }

    fn failure(&self, e: io::Error) -> Error {
        Error::file(format!("cannot write the log of the training: {e}")).in_file(&self.path)
    }
}

/// Where the records up to `place` end.
fn whole_until(file: &File, place: LogPosition) -> io::Result<u64> {
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    let mut end = 0;
    loop {
        line.clear();
        match (&mut lines).take(LINE_LIMIT).read_until(b'\n', &mut line) {
            Ok(n) if line.ends_with(b"\n") && place_of(&line).is_some_and(|found| found <= place) => end += n as u64,
            Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e),
            _ => return Ok(end),
        }
    }
}

fn place_of(line: &[u8]) -> Option<LogPosition> {
    serde_json::from_slice::<Placed>(line).ok().map(|found| (found.step, found.epoch, found.batch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::error::Kind;
    use serde_json::json;
    use std::fs;

    fn write(log: &mut MetricsLog, steps: std::ops::Range<u64>) {
        for step in steps {
            log.record(&json!({ "step": step, "loss": 1.0 / step as f64 })).unwrap();
        }
    }

    #[test]
    fn a_resumed_log_equals_an_unbroken_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        write(&mut MetricsLog::open(&path, None).unwrap(), 1..31);
        let unbroken = fs::read_to_string(&path).unwrap();
        assert_eq!(unbroken.lines().count(), 30);

        // A kill may end it anywhere behind the last checkpoint, which is of step 20.
        let twenty: usize = unbroken.split_inclusive('\n').take(20).map(str::len).sum();
        for at in twenty..=unbroken.len() {
            fs::write(&path, &unbroken[..at]).unwrap();
            let mut log = MetricsLog::open(&path, Some((20, 0, 0))).unwrap();
            log.sync().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), unbroken[..twenty]);
            write(&mut log, 21..31);
            assert_eq!(fs::read_to_string(&path).unwrap(), unbroken);
        }

        write(&mut MetricsLog::open(&path, None).unwrap(), 1..3);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2, "a new job begins a new log");
    }

    #[test]
    fn batches_of_one_step_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let places = [(0, 0, 1), (0, 0, 2), (1, 0, 3), (1, 0, 4), (1, 1, 0), (1, 1, 1), (2, 1, 2)];
        let lines = places.map(|(step, epoch, batch)| {
            let mut record = json!({ "step": step, "epoch": epoch, "batch": batch });
            if batch == 0 {
                // The score of an epoch, which has no batch.
                record = json!({ "step": step, "epoch": epoch, "score": 0.5 });
            }
            format!("{record}\n")
        });
        for (i, place) in places.into_iter().enumerate() {
            fs::write(&path, lines.concat()).unwrap();
            MetricsLog::open(&path, Some(place)).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), lines[..=i].concat(), "{place:?}");
        }
    }

    #[test]
    fn what_is_no_record_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let good = "{\"step\":1}\n{\"loss\":null,\"step\":2}\n";
        let long = format!("{{\"step\":3,\"x\":\"{}\"}}\n", "x".repeat(LINE_LIMIT as usize));
        for bad in ["", "\0\0\0\0\0", "{\"loss\":1}\n", "{\"step\":-1}\n", "\u{fe0f}\n", "\n", "{\"step\":3}", &long] {
            fs::write(&path, format!("{good}{bad}")).unwrap();
            MetricsLog::open(&path, Some((9, 0, 0))).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), good);
        }
    }

    #[test]
    fn records_have_steps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut log = MetricsLog::open(&path, None).unwrap();
        assert_eq!(log.record(&json!({ "loss": 1 })).unwrap_err().kind(), Kind::Bug);
        assert_eq!(log.record(&json!([7])).unwrap_err().kind(), Kind::Bug);
        log.record(&json!({ "step": 1, "loss": f32::NAN })).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"loss\":null,\"step\":1}\n");
        let e = MetricsLog::open(&folder.path().join("missing/metrics.jsonl"), None).unwrap_err();
        assert_eq!(e.kind(), Kind::File);
    }
}
