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

/// What is asked of each record.
#[derive(Deserialize)]
struct Stepped {
    step: u64,
}

impl MetricsLog {
    /// Opens the log. A job that begins (`resumed` is `None`) begins it anew. One that goes on
    /// after a step keeps the records up to that step: the first record of a later one, or the
    /// first line that is no record, and all behind it go, as those steps are done again.
    ///
    /// # Errors
    /// File, when it can't be read or written.
    pub fn open(path: &Path, resumed: Option<u64>) -> Result<Self> {
        let open = || {
            let mut file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
            let end = resumed.map_or(Ok(0), |step| whole_until(&file, step))?;
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
        if !line.starts_with(b"{") || step_of(&line).is_none() {
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

/// Where the records up to `step` end.
fn whole_until(file: &File, step: u64) -> io::Result<u64> {
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    let mut end = 0;
    loop {
        line.clear();
        match (&mut lines).take(LINE_LIMIT).read_until(b'\n', &mut line) {
            Ok(n) if line.ends_with(b"\n") && step_of(&line).is_some_and(|found| found <= step) => end += n as u64,
            Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e),
            _ => return Ok(end),
        }
    }
}

fn step_of(line: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Stepped>(line).ok().map(|found| found.step)
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
            let mut log = MetricsLog::open(&path, Some(20)).unwrap();
            log.sync().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), unbroken[..twenty]);
            write(&mut log, 21..31);
            assert_eq!(fs::read_to_string(&path).unwrap(), unbroken);
        }

        write(&mut MetricsLog::open(&path, None).unwrap(), 1..3);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2, "a new job begins a new log");
    }

    #[test]
    fn what_is_no_record_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let good = "{\"step\":1}\n{\"loss\":null,\"step\":2}\n";
        let long = format!("{{\"step\":3,\"x\":\"{}\"}}\n", "x".repeat(LINE_LIMIT as usize));
        for bad in ["", "\0\0\0\0\0", "{\"loss\":1}\n", "{\"step\":-1}\n", "\u{fe0f}\n", "\n", "{\"step\":3}", &long] {
            fs::write(&path, format!("{good}{bad}")).unwrap();
            MetricsLog::open(&path, Some(9)).unwrap();
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
