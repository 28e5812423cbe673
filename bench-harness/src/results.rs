//! The results of a run as files of one folder: `result.json`, and the pages made from it.

use std::path::Path;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::advise::Answer;
use crate::measure::{Outcome, Round};
use crate::report::{markdown, page_with};
use crate::run::RunError;
use crate::worker::COUNTER;

/// Removes the results of an earlier run from a folder, and nothing else; makes the folder if it is not there.
///
/// # Errors
/// What the system says.
pub fn clear(folder: &Path) -> Result<(), RunError> {
    let say = |error| system("prepare", folder, error);
    std::fs::create_dir_all(folder).map_err(say)?;
    for entry in std::fs::read_dir(folder).map_err(say)?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_file = [RESULT, PAGE, SUMMARY, ANSWER, ADVICE].contains(&name.as_ref()) || is_evidence(&name);
        if is_file {
            std::fs::remove_file(entry.path()).map_err(say)?;
        } else if name.starts_with("round-") && entry.path().is_dir() {
            for inner in std::fs::read_dir(entry.path()).map_err(say)?.flatten() {
                if is_evidence(&inner.file_name().to_string_lossy()) {
                    std::fs::remove_file(inner.path()).map_err(say)?;
                }
            }
        }
    }
    Ok(())
}

/// Writes `result.json`, then makes the pages from what was written; gives back the outcome as it was written.
///
/// # Errors
/// What the system says.
pub fn write(outcome: &Outcome, folder: &Path) -> Result<Outcome, RunError> {
    let path = folder.join(RESULT);
    std::fs::write(&path, to_json(outcome)?).map_err(|error| system("write", &path, error))?;
    let written = read(folder)?;
    write_pages(&written, None, folder)?;
    Ok(written)
}

/// Writes `report.html`, with locks that were looked up in a round if any were, and `summary.md`.
///
/// # Errors
/// What the system says.
pub fn write_pages(outcome: &Outcome, looked_up: Option<(usize, &Round)>, folder: &Path) -> Result<(), RunError> {
    let html = page_with(outcome, looked_up).map_err(|error| RunError::Report(error.to_string()))?;
    for (name, text) in [(PAGE, html), (SUMMARY, markdown(outcome))] {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| system("write", &path, error))?;
    }
    Ok(())
}

/// Writes an answer as data under that name, and its text as `summary.md`; gives back the data as written.
///
/// # Errors
/// What the system says.
pub fn write_answer(name: &str, answer: &impl Serialize, text: &str, folder: &Path) -> Result<String, RunError> {
    let json = serde_json::to_string_pretty(answer)
        .map(|text| text + "\n")
        .map_err(|error| RunError::Report(format!("the answer is no JSON: {error}")))?;
    let summary = fenced(text);
    for (name, text) in [(name, &json), (SUMMARY, &summary)] {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| system("write", &path, error))?;
    }
    Ok(json)
}

/// A text as Markdown that shows it as it is.
fn fenced(text: &str) -> String {
    format!("```text\n{text}```\n")
}

/// Reads the `result.json` of a folder.
///
/// # Errors
/// What the system says, or that the file is none of ours.
pub fn read(folder: &Path) -> Result<Outcome, RunError> {
    document(&folder.join(RESULT), |outcome: &Outcome| outcome.schema)
}

/// Reads the `advice.json` of a folder.
///
/// # Errors
/// As [`read`].
pub fn read_advice(folder: &Path) -> Result<Answer, RunError> {
    document(&folder.join(ADVICE), |answer: &Answer| answer.schema)
}

fn document<T: DeserializeOwned>(path: &Path, schema: impl Fn(&T) -> u32) -> Result<T, RunError> {
    let text = std::fs::read_to_string(path).map_err(|error| system("read", path, error))?;
    let document: T = serde_json::from_str(&text)
        .map_err(|error| RunError::Report(format!("{} is no result of this version: {error}", path.display())))?;
    match schema(&document) {
        SCHEMA => Ok(document),
        other => Err(RunError::Report(format!(
            "{} has schema {other}, this lockbench reads {SCHEMA}",
            path.display()
        ))),
    }
}

/// An outcome as `result.json` holds it.
///
/// # Errors
/// When it holds a number that JSON cannot.
pub fn to_json(outcome: &Outcome) -> Result<String, RunError> {
    serde_json::to_string_pretty(outcome)
        .map(|text| text + "\n")
        .map_err(|error| RunError::Report(format!("the outcome is no JSON: {error}")))
}

/// The JSON Schema of `result.json`: what each field means, and which are always there.
///
/// It lies beside this package's manifest, too.
pub fn json_schema() -> String {
    schema_of::<Outcome>(RESULT)
}

/// The same of `advice.json`.
pub fn advice_schema() -> String {
    schema_of::<Answer>(ADVICE)
}

fn schema_of<T: JsonSchema>(name: &str) -> String {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<T>();
    schema.insert("title".to_owned(), format!("{name} of lockbench").into());
    // A schema is plain JSON, so it can be written as text.
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

fn is_evidence(name: &str) -> bool {
    // A counter that went on from an earlier run would hide the updates that this one loses.
    let is_counter = name.strip_prefix(COUNTER).is_some_and(|key| key.parse::<u64>().is_ok());
    let is_record = name.starts_with("evidence-") && (name.ends_with(".bin") || name.ends_with(".aof"));
    is_record || is_counter
}

fn system(what: &str, path: &Path, source: std::io::Error) -> RunError {
    RunError::System {
        what: format!("{what} {}", path.display()),
        source,
    }
}

/// The version of `result.json` that is written and read.
pub const SCHEMA: u32 = 1;

/// The page people look at.
pub const PAGE: &str = "report.html";

/// The outcome; all else is made from it.
pub const RESULT: &str = "result.json";

/// The answer to a question of capacity, as data.
pub const ANSWER: &str = "capacity.json";

/// Which lock to take, as data.
pub const ADVICE: &str = "advice.json";

/// The summary for a pull request.
pub const SUMMARY: &str = "summary.md";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::judge;
    use crate::measure::samples::{grid_outcome, held_outcome, load_outcome};

    #[test]
    fn a_report_made_again_from_result_json_is_the_same_to_the_byte() {
        for mut outcome in [held_outcome(), load_outcome(), grid_outcome()] {
            judge(&mut outcome);
            let folder = tempfile::tempdir().unwrap();
            write(&outcome, folder.path()).unwrap();
            let pages = || [PAGE, SUMMARY].map(|name| std::fs::read(folder.path().join(name)).unwrap());
            let first = pages();
            write_pages(&read(folder.path()).unwrap(), None, folder.path()).unwrap();
            assert_eq!(first, pages());
        }
    }

    /// The folders below one that hold a result.
    fn folders_with_results(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            // What is made on this machine is nobody else's.
            if path.is_dir() && !path.ends_with("local") {
                folders_with_results(&path, found);
            } else if path.ends_with(RESULT) {
                found.push(folder.to_owned());
            }
        }
    }

    #[test]
    fn every_shipped_report_is_as_the_schema_says_and_made_from_its_result() {
        let mut folders = Vec::new();
        // Not there where the package is built on its own.
        folders_with_results(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../reports"), &mut folders);
        let schema = serde_json::from_str(include_str!("../result.schema.json")).unwrap();
        let schema = jsonschema::validator_for(&schema).unwrap();
        for folder in folders {
            let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
            let value = serde_json::from_str(&text(RESULT)).unwrap();
            let wrong: Vec<_> = schema.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(wrong.is_empty(), "{}: {wrong:?}", folder.display());
            let outcome = read(&folder).unwrap();
            assert!(outcome.machine.cores > 0 && !outcome.versions.redis.is_empty() && !outcome.repeat.is_empty());
            assert!(
                text(PAGE) == crate::report::page(&outcome).unwrap(),
                "make it again: lockbench report {}",
                folder.display()
            );
            assert!(
                text(SUMMARY) == markdown(&outcome),
                "make it again: lockbench report {}",
                folder.display()
            );
        }
    }

    #[test]
    fn every_result_is_as_the_schema_says_and_the_shipped_one_is_that_of_this_code() {
        let shipped = include_str!("../result.schema.json");
        assert!(
            shipped == json_schema(),
            "write it anew: cargo run -p leasehold-bench -- schema > bench-harness/result.schema.json"
        );
        let schema = jsonschema::validator_for(&serde_json::from_str(shipped).unwrap()).unwrap();
        for mut outcome in [held_outcome(), load_outcome(), grid_outcome()] {
            judge(&mut outcome);
            let mut result = serde_json::to_value(&outcome).unwrap();
            let wrong: Vec<_> = schema.iter_errors(&result).map(|error| error.to_string()).collect();
            assert_eq!(wrong, [""; 0]);
            for (place, value) in [("/exit", "no number".into()), ("/checked/overlaps/count", (-1).into())] {
                let right = std::mem::replace(result.pointer_mut(place).unwrap(), value);
                assert!(!schema.is_valid(&result), "{place}");
                *result.pointer_mut(place).unwrap() = right;
            }
            result.as_object_mut().unwrap().remove("verdict");
            assert!(!schema.is_valid(&result), "a field is missing");
        }
    }

    #[test]
    fn the_shipped_schema_of_advice_is_that_of_this_code_and_shipped_advice_is_as_it_says() {
        let shipped = include_str!("../advice.schema.json");
        assert!(
            shipped == advice_schema(),
            "write it anew: cargo run -p leasehold-bench -- schema advice > bench-harness/advice.schema.json"
        );
        let schema = jsonschema::validator_for(&serde_json::from_str(shipped).unwrap()).unwrap();
        let reports = Path::new(env!("CARGO_MANIFEST_DIR")).join("../reports/lock-types");
        let entries = std::fs::read_dir(reports).unwrap().map(|entry| entry.unwrap().path());
        let folders: Vec<_> = entries.filter(|path| path.is_dir()).collect();
        assert!(!folders.is_empty());
        for folder in folders {
            let text = |name| std::fs::read_to_string(folder.join(name)).unwrap();
            let mut advice = serde_json::from_str(&text(ADVICE)).unwrap();
            let wrong: Vec<_> = schema.iter_errors(&advice).map(|error| error.to_string()).collect();
            assert!(wrong.is_empty(), "{}: {wrong:?}", folder.display());
            let answer = read_advice(&folder).unwrap();
            assert_eq!(answer.exit, 0, "{}", folder.display());
            let mut again = answer.clone();
            again.judge();
            assert!(
                again == answer && text(SUMMARY) == fenced(&crate::advise::text(&answer)),
                "make it again: lockbench report {}",
                folder.display()
            );
            advice.as_object_mut().unwrap().remove("rows");
            assert!(!schema.is_valid(&advice), "a field is missing");
        }
    }

    #[test]
    fn a_result_of_another_schema_is_refused() {
        let mut outcome = load_outcome();
        outcome.schema = 2;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(RESULT), to_json(&outcome).unwrap()).unwrap();
        assert!(read(folder.path()).unwrap_err().to_string().contains("schema 2"));
    }

    #[test]
    fn clearing_a_folder_leaves_what_is_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            RESULT,
            "evidence-0.bin",
            "evidence-server.aof",
            "counter-7",
            "notes.txt",
        ] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        clear(folder.path()).unwrap();
        let left: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["notes.txt"]);
    }
}
