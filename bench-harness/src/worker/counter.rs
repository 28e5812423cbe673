//! A counter that nothing but the lock protects: a file a key, read before the work and written after it.
//!
//! Lost updates prove that two worked at once; none prove nothing.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The counter of one key, as it was when the work began.
pub(super) struct Counter {
    path: PathBuf,
    seen: u64,
}

impl Counter {
    /// Reads the counter of a key in the folder of the run.
    pub(super) fn read(folder: &Path, key: u64) -> io::Result<Self> {
        let path = folder.join(format!("{PREFIX}{key}"));
        let seen = value(&path)?;
        Ok(Counter { path, seen })
    }

    /// Writes one more than was read, whatever has happened since.
    pub(super) fn raise(self) -> io::Result<()> {
        // Not cut first: nobody must ever see an empty file.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.path)?;
        file.write_all_at(&(self.seen + 1).to_le_bytes(), 0)
    }
}

/// The sum of all counters in the folder of a run.
pub(crate) fn sum(folder: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            sum += value(&entry.path())?;
        }
    }
    Ok(sum)
}

fn value(path: &Path) -> io::Result<u64> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    Ok(bytes.try_into().map_or(0, u64::from_le_bytes))
}

/// What the files of counters are called, before the key.
pub(crate) const PREFIX: &str = "counter-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_in_turn_all_count_and_one_of_two_at_once_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let read = |key| Counter::read(folder.path(), key).unwrap();
        for _ in 0..3 {
            read(1).raise().unwrap();
        }
        assert_eq!(sum(folder.path()).unwrap(), 3);
        let (one, other) = (read(2), read(2));
        one.raise().unwrap();
        other.raise().unwrap();
        assert_eq!(sum(folder.path()).unwrap(), 4);
    }

    #[test]
    fn every_planted_lost_update_is_missing_and_no_other() {
        for seed in 0..50 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let folder = tempfile::tempdir().unwrap();
            let read = |key| Counter::read(folder.path(), key).unwrap();
            let (mut raised, mut planted) = (0, 0);
            for _ in 0..40 {
                let key = rng.u64(0..3);
                let first = read(key);
                if rng.u8(0..4) == 0 {
                    // Somebody else's whole turn inside this one.
                    read(key).raise().unwrap();
                    (raised, planted) = (raised + 1, planted + 1);
                }
                first.raise().unwrap();
                raised += 1;
            }
            assert_eq!(raised - sum(folder.path()).unwrap(), planted, "seed {seed}");
        }
    }
}
