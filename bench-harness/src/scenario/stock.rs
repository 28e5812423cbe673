//! The scenarios that come with the tool, as they lie in `bench-harness/scenarios`.

use super::LockType;

/// A scenario built into the binary.
#[derive(Clone, Copy, Debug)]
pub struct Stock {
    /// The name by which `lockbench run` finds it.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
    /// The kind of lock it runs on.
    lock: &'static str,
}

impl Stock {
    /// Every built-in scenario whose kind of lock exists, in the order in which a newcomer should meet them.
    pub fn all() -> impl Iterator<Item = &'static Stock> {
        let exists = |name: &str| LockType::names().any(|known| known == name);
        STOCK.iter().filter(move |stock| exists(stock.lock))
    }
}

macro_rules! stock {
    ($($name:literal on $lock:literal;)*) => {
        &[$(Stock {
            name: $name,
            text: include_str!(concat!("../../scenarios/", $name, ".toml")),
            lock: $lock,
        },)*]
    };
}

const STOCK: &[Stock] = stock! {
    "pause-demo" on "reentrant";
    "uncontended" on "reentrant";
    "hot-key" on "reentrant";
    "flash-sale" on "reentrant";
    "stock-decrement" on "fenced";
    "read-mostly" on "read_write";
    "write-mostly" on "read_write";
    "fair-queue" on "fair";
    "cron-singleton" on "fenced";
    "reentrant-depth" on "reentrant";
    "script-flush" on "reentrant";
    "oom-convoy" on "reentrant";
    "client-freeze" on "fenced";
    "crash-orphan" on "reentrant";
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn every_stock_scenario_is_valid_and_says_its_question_at_the_top() {
        for stock in Stock::all() {
            let scenario = Scenario::read(stock.name, &[]).unwrap();
            assert_eq!(scenario.name, stock.name);
            assert_eq!(String::from(scenario.lock.kind), stock.lock);
            assert!(stock.text.starts_with("# "), "{} starts with a comment", stock.name);
            assert!(scenario.question.ends_with('?'), "{} asks something", stock.name);
        }
    }
}
