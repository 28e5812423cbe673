//! Report: an outcome to one self-contained HTML page and a Markdown summary. Pure: nothing here looks anywhere else.

mod chart;
mod grid;
mod page;
mod summary;

pub use page::{page, page_with};
pub use summary::markdown;

/// The page could not be made: a mistake in its template.
#[derive(Debug, thiserror::Error)]
#[error("the template of the page is wrong: {0}")]
pub struct ReportError(#[from] minijinja::Error);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::judge;
    use crate::measure::samples::{grid_outcome, held_outcome, load_outcome};

    #[test]
    fn a_page_loads_nothing_from_elsewhere_and_escapes_what_it_shows() {
        for mut outcome in [held_outcome(), load_outcome(), grid_outcome()] {
            judge(&mut outcome);
            let page = page(&outcome).unwrap();
            for sign in ["src=\"http", "href=\"http", "@import", "url(http", "<script src"] {
                assert!(!page.contains(sign), "{sign}");
            }
            assert!(page.contains("test &lt;cpu&gt;") && !page.contains("test <cpu>"));
            assert!(page.contains("prefers-color-scheme"));
        }
    }

    #[test]
    fn what_is_to_be_pure_touches_no_file_clock_or_task() {
        let sources = [
            include_str!("report.rs"),
            include_str!("report/page.rs"),
            include_str!("report/chart.rs"),
            include_str!("report/chart/notice.rs"),
            include_str!("report/grid.rs"),
            include_str!("measure/grid.rs"),
            include_str!("report/summary.rs"),
            include_str!("check.rs"),
            include_str!("predict.rs"),
            include_str!("predict/fate.rs"),
            include_str!("predict/table.rs"),
            include_str!("predict/timings.rs"),
            include_str!("measure/words.rs"),
            include_str!("measure/verdict.rs"),
        ];
        for text in sources {
            let imports = text.lines().map(str::trim).filter(|line| line.starts_with("use "));
            for import in imports {
                for impure in [
                    "std::fs",
                    "std::io",
                    "std::net",
                    "std::process",
                    "std::thread",
                    "clock",
                    "tokio",
                    "redis",
                ] {
                    assert!(!import.contains(impure), "{import}");
                }
            }
        }
    }
}
