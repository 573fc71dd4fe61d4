//! Event files for TensorBoard, with scalars only.
//!
//! A file is a sequence of records, each with its length and two checksums around it (TFRecord),
//! and each record is an `Event`, a protobuf message of which this module writes six fields.

use compress_compiler::error::{Error, Result};
use protobuf::CodedOutputStream;
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// The numbers of fields in tensorflow/core/util/event.proto and framework/summary.proto.
mod field {
    pub(super) const WALL_TIME: u32 = 1;
    pub(super) const STEP: u32 = 2;
    pub(super) const FILE_VERSION: u32 = 3;
    pub(super) const SUMMARY: u32 = 5;
    pub(super) const SESSION_LOG: u32 = 7;

    /// In a summary.
    pub(super) const VALUE: u32 = 1;
    /// In a value.
    pub(super) const TAG: u32 = 1;
    pub(super) const SIMPLE_VALUE: u32 = 2;
    /// In a session log.
    pub(super) const STATUS: u32 = 1;
}

/// The status of a session log by which readers forget all later steps of earlier files.
const START: i32 = 1;

/// An event file that a job appends to.
#[derive(Debug)]
pub struct EventFile {
    file: File,
    path: PathBuf,
}

impl EventFile {
    /// Makes a new event file in the folder, and the folder where it is missing. A job that goes
    /// on after the step `resumed` says so, and readers forget what its earlier files have of
    /// later steps.
    ///
    /// # Errors
    /// File, when it can't be made.
    pub fn create(folder: &Path, resumed: Option<u64>) -> Result<Self> {
        let failure = |e: io::Error| Error::file(format!("cannot make an event file: {e}")).in_file(folder);
        fs::create_dir_all(folder).map_err(failure)?;
        let mut seconds = now().as_secs();
        let (file, path) = loop {
            let path = folder.join(format!("events.out.tfevents.{seconds:010}.{}", host()));
            match File::create_new(&path) {
                Ok(file) => break (file, path),
                // Readers take files in the order of their names, so a later one needs a later name.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => seconds += 1,
                Err(e) => return Err(failure(e)),
            }
        };
        let mut events = Self { file, path };
        events.append(0, |event| event.write_string(field::FILE_VERSION, "brain.Event:2"))?;
        if let Some(step) = resumed {
            let log = message(|log| log.write_enum(field::STATUS, START))?;
            events.append(step.saturating_add(1), |event| event.write_bytes(field::SESSION_LOG, &log))?;
        }
        Ok(events)
    }

    /// Appends one value of the curve `tag`, which is in the file when this returns.
    ///
    /// # Errors
    /// File, when it can't be written.
    pub fn scalar(&mut self, tag: &str, step: u64, value: f32) -> Result<()> {
        let value = message(|out| {
            out.write_string(field::TAG, tag)?;
            out.write_float(field::SIMPLE_VALUE, value)
        })?;
        let summary = message(|out| out.write_bytes(field::VALUE, &value))?;
        self.append(step, |event| event.write_bytes(field::SUMMARY, &summary))
    }

    fn append(&mut self, step: u64, what: impl FnOnce(&mut CodedOutputStream) -> protobuf::Result<()>) -> Result<()> {
        let event = message(|event| {
            event.write_double(field::WALL_TIME, now().as_secs_f64())?;
            event.write_int64(field::STEP, i64::try_from(step).unwrap_or(i64::MAX))?;
            what(event)
        })?;
        let written = self.file.write_all(&record(&event));
        written.map_err(|e| Error::file(format!("cannot write the event file: {e}")).in_file(&self.path))
    }
}

/// The time since 1970; a clock before that is as good as none.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn host() -> String {
    let name = sysinfo::System::host_name().unwrap_or_default();
    let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

fn message(write: impl FnOnce(&mut CodedOutputStream) -> protobuf::Result<()>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut out = CodedOutputStream::vec(&mut bytes);
    write(&mut out).and_then(|()| out.flush()).map_err(|e| Error::bug(format!("an event: {e}")))?;
    drop(out);
    Ok(bytes)
}

/// Frames `data` as a TFRecord.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), data, &masked(data)].concat()
}

/// The CRC-32C of `bytes`, masked: sums of bytes that contain their own sums would be weak.
fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::error::Kind;
    use protobuf::CodedInputStream;

    /// CRC-32C bit by bit, from its polynomial.
    fn crc(bytes: &[u8]) -> u32 {
        !bytes
            .iter()
            .fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1))))
    }

    /// The records of a file, whose sums must be right.
    fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut take = |n: usize| {
            let (head, rest) = bytes.split_at_checked(n)?;
            bytes = rest;
            Some(head.to_vec())
        };
        let unmask =
            |sum: Vec<u8>| u32::from_le_bytes(sum.try_into().unwrap()).wrapping_sub(0xa282_ead8).rotate_left(15);
        let mut found = Vec::new();
        while let Some(length) = take(8) {
            assert_eq!(unmask(take(4).unwrap()), crc(&length));
            let data = take(u64::from_le_bytes(length.try_into().unwrap()) as usize).unwrap();
            assert_eq!(unmask(take(4).unwrap()), crc(&data));
            found.push(data);
        }
        found
    }

    /// The fields of a message: number, wire type and bytes.
    fn fields(bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut input = CodedInputStream::from_bytes(bytes);
        let mut found = Vec::new();
        while let Some(tag) = input.read_raw_tag_or_eof().unwrap() {
            let bytes = match tag & 7 {
                0 => input.read_raw_varint64().unwrap().to_le_bytes().to_vec(),
                1 => input.read_fixed64().unwrap().to_le_bytes().to_vec(),
                2 => input.read_bytes().unwrap(),
                5 => input.read_fixed32().unwrap().to_le_bytes().to_vec(),
                other => panic!("wire type {other}"),
            };
            found.push((tag >> 3, bytes));
        }
        found
    }

    #[test]
    fn sums_are_those_of_the_standard() {
        // RFC 3720, B.4, and the check value of the polynomial.
        for (bytes, sum) in [(&[0u8; 32][..], 0x8a91_36aa), (&[0xff; 32], 0x62a8_ab43), (b"123456789", 0xe306_9283)] {
            assert_eq!((crc(bytes), crc32c::crc32c(bytes)), (sum, sum));
        }
        // What TensorBoard's own Python makes of them.
        assert_eq!(u32::from_le_bytes(masked(b"foo")), 0xfebe_8a61);
        assert_eq!(u32::from_le_bytes(masked(b"brain.Event:2")), 0x7c06_01ee);
        assert_eq!(record(&[]), [0, 0, 0, 0, 0, 0, 0, 0, 0x29, 0x03, 0x98, 0x07, 0xd8, 0xea, 0x82, 0xa2]);
    }

    #[test]
    fn scalars_are_events() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("logs");
        let before = now().as_secs_f64();
        let mut events = EventFile::create(&logs, None).unwrap();
        events.scalar("loss/total", 300, 0.75).unwrap();
        events.scalar("rate", u64::MAX, f32::NAN).unwrap();

        let name = events.path.file_name().unwrap().to_str().unwrap();
        let rest = name.strip_prefix("events.out.tfevents.").unwrap();
        assert!(rest.len() > 11 && rest[..10].parse::<u64>().unwrap().abs_diff(before as u64) < 60, "{name}");

        let found: Vec<_> = records(&fs::read(&events.path).unwrap()).iter().map(|r| fields(r)).collect();
        assert_eq!(found.len(), 3);
        for event in &found {
            let time = f64::from_le_bytes(event[0].1.clone().try_into().unwrap());
            assert!(event[0].0 == 1 && (before..before + 60.0).contains(&time));
        }
        assert_eq!(found[0][2], (3, b"brain.Event:2".to_vec()));
        assert_eq!(found[1][1], (2, 300u64.to_le_bytes().to_vec()));
        assert_eq!(found[1][2].0, 5);
        let value = fields(&found[1][2].1);
        assert_eq!(value[0].0, 1);
        let expected = vec![(1, b"loss/total".to_vec()), (2, 0.75f32.to_le_bytes().to_vec())];
        assert_eq!(fields(&value[0].1), expected);
        assert_eq!(found[2][1], (2, i64::MAX.to_le_bytes().to_vec()));
    }

    #[test]
    fn a_resumed_job_says_where_it_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let first = EventFile::create(folder.path(), None).unwrap();
        let second = EventFile::create(folder.path(), Some(20)).unwrap();
        assert!(first.path < second.path, "in one second too");
        let found = records(&fs::read(&second.path).unwrap());
        let start = fields(&found[1]);
        assert_eq!(start[1], (2, 21u64.to_le_bytes().to_vec()));
        assert_eq!((start[2].0, fields(&start[2].1)), (7, vec![(1, 1u64.to_le_bytes().to_vec())]));

        let e = EventFile::create(&first.path, None).unwrap_err();
        assert_eq!(e.kind(), Kind::File);
    }
}
