//! Times that were recorded elsewhere: one a line of a file.

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::Time;

/// Times that were recorded elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// The file, relative to that of the scenario. One time a line: seconds (`0.25`), or with a unit (`250ms`). Empty lines and what
    /// follows a `#` do not count.
    pub file: String,
    /// What stands in the file: read together with the scenario, so that a result says what was run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<Time>,
}

impl Trace {
    /// Reads the file; `in_order` demands that no time lies before the one above it.
    pub(super) fn read(&mut self, folder: &Path, in_order: bool) -> Result<(), String> {
        let path = folder.join(&self.file);
        let text = std::fs::read_to_string(&path).map_err(|error| {
            format!(
                "{} cannot be read ({error}): the path counts from the folder of the scenario",
                path.display()
            )
        })?;
        self.times = times(&text, in_order).map_err(|message| format!("{}, {message}", path.display()))?;
        Ok(())
    }
}

fn times(text: &str, in_order: bool) -> Result<Vec<Time>, String> {
    let mut times: Vec<Time> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let written = line.split('#').next().unwrap_or_default().trim();
        if written.is_empty() {
            continue;
        }
        let number = index + 1;
        let time = time(written).ok_or_else(|| {
            format!("line {number}: {written:?} is no time: write seconds, as 0.25, or a unit, as 250ms")
        })?;
        if let Some(before) = times.last().filter(|before| in_order && **before > time) {
            return Err(format!(
                "line {number}: {time} lies before {before} above it: sort the lines"
            ));
        }
        times.push(time);
        if times.len() > MOST_LINES {
            return Err(format!("line {number}: more than {MOST_LINES} times: cut the file"));
        }
    }
    if times.is_empty() {
        return Err("it holds no time: write at least one line".to_owned());
    }
    Ok(times)
}

fn time(written: &str) -> Option<Time> {
    let seconds = written.parse().ok().map(Duration::try_from_secs_f64);
    let time = match seconds {
        Some(seconds) => Time(seconds.ok()?),
        None => written.parse().ok()?,
    };
    (time.0 <= LONGEST).then_some(time)
}

/// All of them go to each worker and into the result.
const MOST_LINES: usize = 1_000_000;

/// No run takes longer.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_and_without_a_unit() {
        let read = times("# of Tuesday\n0.25\n\n250ms # again\n 3 \n1m\n", true).unwrap();
        assert_eq!(read, [250, 250, 3_000, 60_000].map(Time::millis));
    }

    #[test]
    fn a_bad_line_is_named_with_its_number_and_what_to_write() {
        for (text, message) in [
            ("1\n\nsoon\n", "line 3: \"soon\" is no time: write seconds"),
            ("1\n-1\n", "line 2"),
            ("nan", "line 1"),
            ("1e30", "line 1"),
            ("8d", "line 1"),
            ("1\n2\n500ms\n", "line 3: 500ms lies before 2s above it: sort"),
            ("# nothing\n", "at least one line"),
        ] {
            let refusal = times(text, true).unwrap_err();
            assert!(refusal.contains(message), "{text:?}: {refusal}");
        }
        assert!(times("2\n1\n", false).is_ok(), "lengths have no order");
    }
}
