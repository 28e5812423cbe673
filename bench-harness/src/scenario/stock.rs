//! The scenarios that come with the tool, as they lie in `bench-harness/scenarios`.

/// A scenario built into the binary.
#[derive(Clone, Copy, Debug)]
pub struct Stock {
    /// The name by which `lockbench run` finds it.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

/// Every built-in scenario, in the order in which a newcomer should meet them.
pub const STOCK: [Stock; 4] = [
    Stock {
        name: "pause-demo",
        text: include_str!("../../scenarios/pause-demo.toml"),
    },
    Stock {
        name: "uncontended",
        text: include_str!("../../scenarios/uncontended.toml"),
    },
    Stock {
        name: "hot-key",
        text: include_str!("../../scenarios/hot-key.toml"),
    },
    Stock {
        name: "flash-sale",
        text: include_str!("../../scenarios/flash-sale.toml"),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn every_stock_scenario_is_valid_and_says_its_question_at_the_top() {
        for stock in STOCK {
            let scenario = Scenario::read(stock.name, &[]).unwrap();
            assert_eq!(scenario.name, stock.name);
            assert!(stock.text.starts_with("# "), "{} starts with a comment", stock.name);
            assert!(scenario.question.ends_with('?'), "{} asks something", stock.name);
        }
    }
}
