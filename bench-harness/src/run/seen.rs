//! What the checker makes of the evidence of a run, or of a round of one.

use std::path::Path;

use crate::check::{self, Overlap, Standstill, Work};
use crate::evidence::{EvidenceFile, Record};

use super::RunError;

/// Who worked when, and when two did.
pub(super) struct Seen {
    /// All work, whole.
    pub(super) work: Vec<Work>,
    /// The same without the time in which its worker stood still.
    pub(super) awake: Vec<Work>,
    /// When workers stood still.
    pub(super) still: Vec<Standstill>,
    /// Two at work at once.
    pub(super) overlaps: Vec<Overlap>,
    /// One at work beside a holder that stood still.
    pub(super) frozen: Vec<Overlap>,
}

impl Seen {
    /// From what the workers wrote down, and what the coordinator did about them.
    pub(super) fn of(evidence: &[Vec<Record>], struck: &[Record]) -> Self {
        let work: Vec<_> = evidence.iter().flat_map(|records| check::work_of(records)).collect();
        let still = check::standstills(struck);
        let (awake, _) = check::cut(&work, &still);
        let frozen = match still.is_empty() {
            true => Vec::new(),
            false => {
                let records: Vec<_> = evidence.iter().flatten().copied().collect();
                let (_, frozen) = check::cut(&check::believed(&work, &records), &still);
                check::beside_frozen(&awake, &frozen)
            }
        };
        Self {
            work,
            still,
            overlaps: check::overlaps(awake.clone()),
            awake,
            frozen,
        }
    }
}

/// Puts the coordinator's own records beside those of the workers, if it has any.
pub(super) fn write_down(folder: &Path, struck: &[Record]) -> Result<(), RunError> {
    if struck.is_empty() {
        return Ok(());
    }
    let path = folder.join(STRUCK);
    let file = EvidenceFile::create(&path).map_err(|source| RunError::System {
        what: format!("write evidence to {}", path.display()),
        source,
    })?;
    struck.iter().for_each(|record| file.write(record));
    Ok(())
}

/// The file of the coordinator's own records.
pub(super) const STRUCK: &str = "evidence-faults.bin";
