//! The answer in words: a number behind each clause.

use std::fmt::Write as _;

use super::{Bound, Capacity, Step};

/// The answer, as it is printed and as it lies in `summary.md`.
pub fn text(answer: &Capacity) -> String {
    let mut text = String::new();
    let promises: Vec<String> = answer
        .promises
        .iter()
        .map(|(metric, limit)| format!("{metric} {limit}"))
        .collect();
    let _ = writeln!(
        text,
        " capacity of {} ({})\n",
        answer.scenario.name,
        promises.join(", ")
    );
    let _ = writeln!(
        text,
        " {:>9}{:>12}{:>10}{:>10}{:>10}{:>9}{:>8}  borne",
        "asked /s", "completed", "p50 ms", "p99 ms", "max ms", "failed", "redis"
    );
    let rest = answer.confirmed.iter().chain(&answer.saturated);
    for step in answer.steps.iter().chain(rest) {
        let _ = writeln!(text, "{}", row(step));
    }
    let _ = writeln!(text);
    for sentence in sentences(answer) {
        let _ = writeln!(text, " {sentence}");
    }
    let _ = writeln!(text, " again: {}", answer.repeat);
    text
}

/// One step while the search goes on.
pub(super) fn line(step: &Step) -> String {
    let broke = if step.borne {
        "borne".to_owned()
    } else {
        step.broke.join("; ")
    };
    format!(
        "{} a second: {} completed, p99 {} ms, {broke}",
        number(step.rate_per_s),
        number(step.throughput_per_s),
        step.acquire_p99_ms.map_or("–".to_owned(), number)
    )
}

fn row(step: &Step) -> String {
    let ms = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1}"));
    format!(
        " {:>9}{:>12}{:>10}{:>10}{:>10}{:>8}%{:>8}  {}",
        number(step.rate_per_s),
        number(step.throughput_per_s),
        ms(step.acquire_p50_ms),
        ms(step.acquire_p99_ms),
        ms(step.acquire_max_ms),
        format!("{:.1}", step.failed * 100.0),
        step.redis_cpu
            .map_or("–".to_owned(), |cpu| format!("{:.0} %", cpu * 100.0)),
        if step.borne {
            "yes".to_owned()
        } else {
            step.broke.join("; ")
        }
    )
}

fn sentences(answer: &Capacity) -> Vec<String> {
    let mut sentences: Vec<String> = answer
        .invalid
        .iter()
        .map(|flaw| format!("Not a measurement: {flaw}."))
        .collect();
    let Some(rate) = answer.capacity_per_s else {
        let least = answer
            .steps
            .iter()
            .map(|step| step.rate_per_s)
            .fold(f64::INFINITY, f64::min);
        sentences.push(format!("Not even {} a second are borne.", number(least)));
        return sentences;
    };
    let next = answer
        .too_much_per_s
        .map_or(String::new(), |no| format!("; {} a second are too much", number(no)));
    let confirmed = answer.confirmed.as_ref().map_or(String::new(), |step| {
        let p99 = step.acquire_p99_ms.map_or("–".to_owned(), number);
        format!(
            ", {} a second for three times as long: p99 {p99} ms",
            number(step.rate_per_s)
        )
    });
    sentences.push(format!("Capacity: {} a second{next}{confirmed}.", number(rate)));
    sentences.push(limit(answer, rate));
    if let Some(sale) = &answer.sale {
        let recovered = match sale.recovered_after_s {
            Some(after) => format!("{} s after the rush all was well again", number(after)),
            None => "it was not seen to be well again".to_owned(),
        };
        sentences.push(format!(
            "A sale of {} a second for {} s on top of {} a second: the longest waited {} ms, {} % got no lock, {recovered}.",
            number(sale.peak_per_s),
            number(sale.peak_s),
            number(sale.base_per_s),
            sale.step.acquire_max_ms.map_or("–".to_owned(), number),
            number(sale.step.failed * 100.0),
        ));
    }
    if let Some(alone) = &answer.generator {
        sentences.push(format!(
            "The generator alone did {} a second, {} ms late at p99.",
            number(alone.throughput_per_s),
            alone.generator_lag_p99_ms.map_or("–".to_owned(), number)
        ));
    }
    sentences.extend(advice(answer, rate));
    sentences
}

fn limit(answer: &Capacity, rate: f64) -> String {
    let hot = &answer.hot_key;
    let step = answer.confirmed.as_ref().or(answer.saturated.as_ref());
    let full = answer.saturated.as_ref().or(answer.confirmed.as_ref());
    let of = |value: Option<f64>| value.map_or("–".to_owned(), number);
    let hold = of(step.and_then(|step| step.hold_ms));
    let hand_over = of(step.and_then(|step| step.hand_over_ms));
    let bound = format!(
        "the hottest key gets {} % of all, so with a hold of {hold} ms and a hand-over of {hand_over} ms at most {} a second",
        number(hot.share * 100.0),
        of(hot.bound_per_s)
    );
    let explained = match (hot.explained, answer.saturated.as_ref()) {
        (Some(ratio), Some(step)) => format!(
            " ({} a second were completed, {} % of that)",
            number(step.throughput_per_s),
            number(ratio * 100.0)
        ),
        _ => String::new(),
    };
    let cpu = full
        .and_then(|step| step.redis_cpu)
        .map_or("–".to_owned(), |cpu| number(cpu * 100.0));
    match answer.limit {
        Bound::HotKey => format!("Limited by one lock that is never free: {bound}{explained}; Redis was {cpu} % busy."),
        Bound::Redis => format!("Limited by Redis, {cpu} % of a core; {bound}."),
        Bound::Generator => "Limited by the generator: give it more cores, or split the load over machines.".to_owned(),
        Bound::Waiting => format!(
            "Limited by waiting, long before a lock is never free: {bound}; at {} % of that the promise is all used up; Redis was {cpu} % busy.",
            of(hot.bound_per_s.map(|bound| rate * 100.0 / bound))
        ),
        Bound::NotReached => "Nothing was full yet: ask for more with --to.".to_owned(),
        Bound::NotExplained => format!("Not explained: {bound}{explained}; Redis was {cpu} % busy."),
    }
}

fn advice(answer: &Capacity, rate: f64) -> Option<String> {
    let run_at = number(rate * 0.7);
    match answer.limit {
        Bound::HotKey | Bound::Waiting => Some(format!(
            "Run at {run_at} a second at most (70 %); for more, hold the lock for a shorter time, split the hottest key, or do its work in one \
             script without a lock."
        )),
        Bound::Redis => Some(format!(
            "Run at {run_at} a second at most (70 %); for more, spread the keys over several servers."
        )),
        Bound::Generator | Bound::NotReached | Bound::NotExplained => None,
    }
}

/// A number with as many digits as anybody reads.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        of if of >= 100.0 || of.fract() == 0.0 => format!("{value:.0}"),
        of if of >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
