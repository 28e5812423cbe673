//! Evidence: what workers write down while they work; records of 48 bytes, appended with plain writes.
//!
//! A record is written in one call to a file of its worker's own, so it survives the death of the worker.
//! All processes of a machine read one boot-time clock, so records of different workers can be compared.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

/// One thing that happened to one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The lock.
    pub key: u64,
    /// Who: unique to each time a lock was acquired; for renewals and losses the worker.
    pub owner: u64,
    /// The fencing token, 0 if the lock has none.
    pub fence: u64,
    /// What.
    pub kind: Kind,
    /// When, in nanoseconds of the boot-time clock.
    pub clock: u64,
    /// A second instant, where the kind has one.
    pub second_clock: u64,
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// The lock was acquired; stamped after the reply. Second: before the call.
    Acquired = 1,
    /// The last instant of protected work; stamped before the release is sent. Second: 1 if a counter was raised.
    WorkEnd = 2,
    /// The holder was told that the lock is lost.
    Told = 3,
    /// The release was answered. Second: 1 if the lock was still ours, else 0.
    Released = 4,
    /// A renewal the server said yes to: sent, and second: answered.
    Renewed = 5,
    /// A renewal that failed: sent, and second: given up.
    RenewalFailed = 6,
    /// As `Acquired`, only for reading: others may read meanwhile.
    AcquiredToRead = 7,
    /// The worker itself ran late: when it wanted to run, and second: when it did. Of no lock.
    Late = 8,
    /// The coordinator stopped a worker, the owner: all of it stood still from then, and until the second. Of no lock.
    Frozen = 9,
    /// The coordinator killed a worker, the owner: stopped after this instant, and dead by the second. Of no lock.
    Killed = 10,
}

/// The owner of a lock that a member of the team took: its own number for each time.
pub fn owner(member: u64, number: u64) -> u64 {
    member << MEMBER_SHIFT | number
}

/// The member whose owner this is.
pub fn member_of(owner: u64) -> u64 {
    owner >> MEMBER_SHIFT
}

/// Where a worker writes its records.
#[derive(Debug)]
pub struct EvidenceFile(Mutex<File>);

impl EvidenceFile {
    /// Opens a new file for appending.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(path: &Path) -> io::Result<Self> {
        OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(path)
            .map(|file| Self(Mutex::new(file)))
    }

    /// Appends a record.
    ///
    /// A worker that cannot write its evidence must not go on, so this ends the process.
    pub fn write(&self, record: &Record) {
        let mut file = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Err(error) = file.write_all(&record.to_bytes()) {
            eprintln!("lockbench worker: cannot write evidence: {error}");
            std::process::exit(3);
        }
    }
}

impl Record {
    /// The record as it lies in the file.
    pub fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let fields = [
            self.key,
            self.owner,
            self.fence,
            self.kind as u64,
            self.clock,
            self.second_clock,
        ];
        let mut bytes = [0; RECORD_BYTES];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// The record of these bytes, or nothing if its kind is unknown.
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let mut fields = [0; 6];
        for (field, place) in fields.iter_mut().zip(bytes.chunks_exact(8)) {
            *field = u64::from_le_bytes(place.try_into().ok()?);
        }
        let [key, owner, fence, kind, clock, second_clock] = fields;
        let kind = KINDS.into_iter().find(|known| *known as u64 == kind)?;
        Some(Self {
            key,
            owner,
            fence,
            kind,
            clock,
            second_clock,
        })
    }
}

/// The records of one file, in the order in which they were written. A torn last record is left out.
///
/// # Errors
/// What the system says, or that the file holds something else.
pub fn read(path: &Path) -> io::Result<Vec<Record>> {
    let bytes = std::fs::read(path)?;
    let (records, _torn) = bytes.as_chunks::<RECORD_BYTES>();
    records
        .iter()
        .map(|bytes| {
            Record::from_bytes(bytes).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{} holds a record of no known kind", path.display()),
                )
            })
        })
        .collect()
}

/// Length of a record.
pub const RECORD_BYTES: usize = 48;

/// A member takes no more locks than this leaves room for.
const MEMBER_SHIFT: u32 = 40;

const KINDS: [Kind; 10] = [
    Kind::Acquired,
    Kind::WorkEnd,
    Kind::Told,
    Kind::Released,
    Kind::Renewed,
    Kind::RenewalFailed,
    Kind::AcquiredToRead,
    Kind::Late,
    Kind::Frozen,
    Kind::Killed,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_written_and_a_torn_one_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("evidence");
        let file = EvidenceFile::create(&path).unwrap();
        let records: Vec<_> = KINDS
            .into_iter()
            .enumerate()
            .map(|(i, kind)| Record {
                key: i as u64,
                owner: 7,
                fence: 0,
                kind,
                clock: u64::MAX,
                second_clock: 1,
            })
            .collect();
        records.iter().for_each(|record| file.write(record));
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(&[1; 20])
            .unwrap();
        assert_eq!(read(&path).unwrap(), records);
    }

    #[test]
    fn a_foreign_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("evidence");
        std::fs::write(&path, [9; RECORD_BYTES]).unwrap();
        assert!(read(&path).is_err());
    }
}
