//! What a workload can be made of, as a scenario writes it: for people who look for the words.

/// A line of a scenario, and what it means.
pub const WORKLOADS: [(&str, &str); 18] = [
    (r#"arrival = { kind = "constant", rate = "200/s" }"#, "evenly spaced"),
    (
        r#"arrival = { kind = "poisson", rate = "200/s" }"#,
        "at random, as many independent users come; so do the next four",
    ),
    (
        r#"arrival = { kind = "onoff", rate = "200/s", on = "2s", off = "3s" }"#,
        "busy for a while, then nothing for a while, and so on",
    ),
    (
        r#"arrival = { kind = "ramp", from = "20/s", to = "200/s", over = "10s" }"#,
        "a rate that rises or falls steadily, and then stays",
    ),
    (
        r#"arrival = { kind = "steps", rates = ["50/s", "100/s", "200/s"], each = "5s" }"#,
        "one rate after another; the last one stays",
    ),
    (
        r#"arrival = { kind = "flash", base = "60/s", peak = "600/s", rise = "1s", hold = "5s", decay = "3s" }"#,
        "a rush; as a [[stage]] it begins at its time",
    ),
    (
        r#"arrival = { kind = "trace", file = "offsets.txt" }"#,
        "when they came once: a time a line, in order, beside the scenario",
    ),
    (r#"keys = { count = 1, dist = "single" }"#, "one lock"),
    (
        r#"keys = { count = 1000, dist = "uniform" }"#,
        "each as likely as any other",
    ),
    (
        r#"keys = { count = 1000, dist = "zipf", s = 0.99, scramble = true }"#,
        "few are wanted often; scrambled, these do not lie side by side",
    ),
    (
        r#"keys = { count = 1000, dist = "hotspot", hot_keys = 0.1, hot_requests = 0.9 }"#,
        "a tenth of them gets nine of ten requests",
    ),
    (
        r#"hold = { kind = "fixed", mean = "20ms" }"#,
        "always as long; think takes the same words as hold",
    ),
    (r#"hold = { kind = "exp", mean = "20ms" }"#, "exponentially distributed"),
    (
        r#"hold = { kind = "lognormal", p50 = "20ms", p99 = "200ms" }"#,
        "what services mostly look like",
    ),
    (
        r#"hold = { kind = "pareto", p50 = "20ms", p99 = "200ms" }"#,
        "the same two numbers with a longer tail",
    ),
    (
        r#"hold = { kind = "bimodal", short = "5ms", long = "500ms", long_share = 0.01 }"#,
        "one of a hundred takes long",
    ),
    (
        r#"hold = { kind = "trace", file = "holds.txt" }"#,
        "one of those recorded once, at random: a time a line, beside the scenario",
    ),
    (
        r#"reentry = { depth = 2, prob = 0.5 }"#,
        "half of the holders take their lock twice more while they hold it",
    ),
];

#[cfg(test)]
mod tests {
    use super::super::Scenario;
    use super::*;

    #[test]
    fn every_line_can_be_written_as_it_stands() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["offsets.txt", "holds.txt"] {
            std::fs::write(folder.path().join(name), "0.5\n750ms\n").unwrap();
        }
        let file = folder.path().join("s.toml").display().to_string();
        for (line, _) in WORKLOADS {
            let written = |key: &str| line.starts_with(key).then_some(line);
            let text = format!(
                "schema = 1\nname = \"t\"\nquestion = \"?\"\n[lock]\ntype = \"reentrant\"\n[workload]\nmodel = \"open\"\n\
                 duration = \"5s\"\n{}\n{}\n{}\n{}\n",
                written("arrival").unwrap_or(WORKLOADS[0].0),
                written("keys").unwrap_or("keys.count = 5"),
                written("hold").unwrap_or("hold = { kind = \"fixed\", mean = \"1ms\" }"),
                written("reentry").unwrap_or_default(),
            );
            let scenario = Scenario::parse(&file, &text, &[]).unwrap_or_else(|error| panic!("{line}: {error}"));
            let json = serde_json::to_string(&scenario).unwrap();
            assert_eq!(serde_json::from_str::<Scenario>(&json).unwrap(), scenario, "{line}");
        }
    }
}
