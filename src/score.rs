//! `score`: a program of the user's own that says how good answers are.

use crate::{assess::Compared, data::Samples, events::Monitor, measure::Reference};
use compress_compiler::{
    error::{Error, Result},
    tensor::{DType, Tensor},
    words::option::SCORE,
};
use compress_runtime::session::Session;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// What a program said: the score before, if it gave two numbers, and the score after.
pub type Scores = (Option<f64>, f64);

/// Runs both models on all samples, and `command` on a folder with what they answer.
///
/// # Errors
/// Whatever running, reading and writing can raise; data when the program fails or prints no number.
pub fn score(
    command: &str,
    compared: &Compared,
    before: &Reference,
    after: &Session,
    samples: &Samples,
    monitor: &Monitor,
) -> Result<Scores> {
    let failed = |e: std::io::Error| Error::file(format!("the answers for {SCORE} cannot be written: {e}"));
    let folder = tempfile::Builder::new().prefix("compress-score-").tempdir().map_err(failed)?;
    let names: Vec<String> = compared.answers.outputs.iter().map(|o| o.name.clone()).collect();
    let side = |name: &str| -> Result<Vec<Array>> {
        let folder = folder.path().join(name);
        fs::create_dir(&folder).map_err(failed)?;
        file_names(&names).iter().map(|n| Array::new(&folder.join(format!("{n}.npy")))).collect()
    };
    let (mut old, mut new) = (side("before")?, side("after")?);
    let mut labels = Array::new(&folder.path().join("labels.npy"))?;
    let progress = monitor.step("score", samples.indices.len());
    for indices in samples.batches() {
        monitor.check()?;
        let batch = samples.set.batch(indices)?;
        let answered = before.answers(indices, &batch.inputs)?;
        let answered = answered.ok_or_else(|| Error::bug("the answers to all samples were not recorded"))?;
        let made = [answered, after.run(&batch.inputs)?];
        for (i, arrays) in [&mut old, &mut new].into_iter().enumerate() {
            let made = compared.answers_in(i, &made[i]);
            arrays.iter_mut().zip(&made).try_for_each(|(array, t)| array.add(t, batch.len))?;
        }
        if let Some(l) = &batch.labels {
            labels.add(&Tensor::i64s(l), batch.len)?;
        }
        progress.advance(batch.len);
    }
    old.into_iter().chain(new).try_for_each(Array::finish)?;
    match labels.rows {
        0 => fs::remove_file(folder.path().join("labels.npy")).map_err(failed)?,
        _ => labels.finish()?,
    }
    drop(progress);
    run(command, folder.path(), monitor)
}

/// Names of files for outputs: without what separates folders, and each another.
fn file_names(names: &[String]) -> Vec<String> {
    let mut made: Vec<String> = vec![];
    for name in names {
        let plain = name.replace(['/', '\\'], "_");
        let others = (2..).map(|i| format!("{plain}_{i}"));
        let free = std::iter::once(plain.clone()).chain(others).find(|n| !made.contains(n));
        made.extend(free);
    }
    made
}

/// Bytes of what a program prints among which its last line is looked for.
const LAST_WORDS: u64 = 1 << 16;
/// How long a program may take to end that is asked to.
const GRACE: Duration = Duration::from_secs(2);
/// How often a program that runs is asked whether it has ended.
const POLL: Duration = Duration::from_millis(20);

fn run(command: &str, folder: &Path, monitor: &Monitor) -> Result<Scores> {
    let wrong = |what: String| Error::data(format!("{SCORE} `{command}` {what}"));
    let failed = |e: std::io::Error| wrong(format!("cannot be run: {e}"));
    // A file takes all that it prints; a pipe would fill up while nobody reads.
    let mut printed = tempfile::tempfile().map_err(failed)?;
    let mut child = Command::new("sh")
        .args(["-c", &format!("{command} \"$1\""), "sh"])
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(printed.try_clone().map_err(failed)?)
        .stderr(Stdio::inherit())
        // What it starts ends with it.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if monitor.stopped() {
            end(&mut child).map_err(failed)?;
            return Err(Error::interrupted());
        }
        std::thread::sleep(POLL);
    };
    let mut said = vec![];
    let start = printed.metadata().map_err(failed)?.len().saturating_sub(LAST_WORDS);
    printed.seek(SeekFrom::Start(start)).and_then(|_| printed.read_to_end(&mut said)).map_err(failed)?;
    if !status.success() {
        return Err(wrong(format!("failed ({status})")).help("it is given a folder as its last argument"));
    }
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or_default();
    let numbers: Option<Vec<f64>> =
        last.split_whitespace().map(|n| n.parse().ok().filter(|v: &f64| v.is_finite())).collect();
    match numbers.as_deref() {
        Some([after]) => Ok((None, *after)),
        Some([before, after]) => Ok((Some(*before), *after)),
        _ => Err(wrong(format!("printed `{last}`"))
            .help("its last line has to be the score after, or those before and after")),
    }
}

/// Ends a program and what it started.
fn end(child: &mut Child) -> std::io::Result<()> {
    let group = Pid::from_child(child);
    for signal in [Signal::TERM, Signal::KILL] {
        // It may have ended by itself meanwhile.
        let _ = kill_process_group(group, signal);
        let asked = Instant::now();
        while asked.elapsed() < GRACE {
            if child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
    }
    Ok(())
}

/// An array that grows row by row, in NumPy's format (NEP 1).
struct Array {
    path: PathBuf,
    file: File,
    rows: usize,
    /// The rows of each batch, and whether they are not one a sample: a detector finds any number of objects.
    counts: Vec<i64>,
    is_uneven: bool,
    /// The type and the shape of a row.
    row: Option<(DType, Vec<usize>)>,
}

/// Room for the header, which is known at the end.
const HEADER: usize = 256;

impl Array {
    fn new(path: &Path) -> Result<Self> {
        let mut file = File::create(path).map_err(unwritten)?;
        file.write_all(&[0; HEADER]).map_err(unwritten)?;
        Ok(Self { path: path.into(), file, rows: 0, counts: vec![], is_uneven: false, row: None })
    }

    /// Adds the rows of a tensor, which is what so many samples gave; a scalar is one.
    fn add(&mut self, t: &Tensor, samples: usize) -> Result<()> {
        let (rows, row) = t.shape().split_first().map_or((1, vec![]), |(n, rest)| (*n, rest.to_vec()));
        let row = (t.dtype(), row);
        if self.row.as_ref().is_some_and(|known| *known != row) {
            return Err(Error::data(format!("{SCORE}: an output has other sizes in another batch"))
                .help("give samples of one size"));
        }
        self.row = Some(row);
        self.rows += rows;
        self.counts.push(rows as i64);
        self.is_uneven |= rows != samples;
        self.file.write_all(t.bytes()).map_err(unwritten)
    }

    fn finish(mut self) -> Result<()> {
        if self.is_uneven {
            let mut counts = Self::new(&self.path.with_extension("rows.npy"))?;
            counts.add(&Tensor::i64s(&self.counts), self.counts.len())?;
            counts.finish()?;
        }
        let (dtype, row) = self.row.take().unwrap_or((DType::F32, vec![]));
        let kind = match dtype {
            DType::F32 => "<f4",
            DType::F64 => "<f8",
            DType::F16 => "<f2",
            DType::I64 => "<i8",
            DType::I32 => "<i4",
            DType::I16 => "<i2",
            DType::I8 => "|i1",
            DType::U8 => "|u1",
            DType::Bool => "|b1",
            other => return Err(Error::unsupported(format!("{SCORE}: NumPy has no arrays of {other}"))),
        };
        let sizes: String = std::iter::once(self.rows).chain(row).map(|n| format!("{n}, ")).collect();
        let text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({sizes}), }}");
        let mut header = b"\x93NUMPY\x01\x00".to_vec();
        header.extend(((HEADER - 10) as u16).to_le_bytes());
        header.extend(text.as_bytes());
        header.resize(HEADER - 1, b' ');
        header.push(b'\n');
        self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(&header)).map_err(unwritten)
    }
}

fn unwritten(e: std::io::Error) -> Error {
    Error::file(format!("the answers for {SCORE} cannot be written: {e}"))
}
