//! The search for the highest rate that is borne: doubles until one is not, then halves the distance. Pure: it is told what a rate does.

/// What a rate did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Borne {
    /// All that was asked for.
    Yes,
    /// Not all.
    No,
}

/// Between which rates the capacity lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The highest rate that was borne; nothing if not even the lowest was.
    pub borne: Option<f64>,
    /// The lowest rate that was not; nothing if all were.
    pub too_much: Option<f64>,
}

/// Searches from one rate up to another, or down to the least that says anything, until what is borne and what is not lie this near: 0.05 for 5 %.
///
/// A rate that is not borne is tried once more before that is believed: a machine that others use has bad moments, and none of them
/// makes it faster.
///
/// # Errors
/// What `measure` says.
pub fn search<E>(
    (least, from, to): (f64, f64, f64),
    resolution: f64,
    mut measure: impl FnMut(f64) -> Result<Borne, E>,
) -> Result<Found, E> {
    let mut twice = |rate: f64| match measure(rate)? {
        Borne::Yes => Ok(Borne::Yes),
        Borne::No => measure(rate),
    };
    let mut found = Found {
        borne: None,
        too_much: None,
    };
    let mut rate = from;
    loop {
        match twice(rate)? {
            Borne::Yes => found.borne = Some(rate),
            Borne::No => found.too_much = Some(rate),
        }
        rate = match found {
            // Not even the first: down, until there is nothing left to ask.
            Found {
                borne: None,
                too_much: Some(no),
            } if no > least => (no / 2.0).max(least),
            Found {
                borne: Some(yes),
                too_much: None,
            } if yes < to => (yes * 2.0).min(to),
            Found {
                borne: Some(yes),
                too_much: Some(no),
            } if no > yes * (1.0 + resolution) => f64::midpoint(yes, no),
            _ => return Ok(found),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn found(knee: f64, mut noise: impl FnMut() -> f64) -> (Found, usize) {
        let mut steps = 0;
        let measure = |rate: f64| {
            steps += 1;
            Ok::<_, Infallible>(if rate <= knee * noise() { Borne::Yes } else { Borne::No })
        };
        let found = search((1.0, 100.0, 1e6), 0.05, measure).unwrap();
        (found, steps)
    }

    #[test]
    fn the_knee_is_found_to_within_the_resolution_wherever_it_lies() {
        for knee in [1.3, 17.0, 99.0, 100.0, 433.0, 51_000.0, 999_000.0] {
            let (found, steps) = found(knee, || 1.0);
            let (borne, too_much) = (found.borne.unwrap(), found.too_much.unwrap());
            assert!(borne <= knee && knee < too_much, "{knee}: {found:?}");
            assert!(too_much <= borne * 1.05, "{knee}: {found:?}");
            assert!(steps <= 40, "{knee}: {steps} steps");
        }
    }

    #[test]
    fn one_bad_moment_does_not_pull_it_down() {
        // Every third step is a bad moment, in which nothing is borne.
        let mut step = 0;
        let (found, _) = found(433.0, || {
            step += 1;
            if step % 3 == 0 { 0.0 } else { 1.0 }
        });
        assert!(found.borne.unwrap() > 433.0 / 1.06, "{found:?}");
    }

    #[test]
    fn no_end_in_reach_and_no_rate_that_is_borne_are_said() {
        let endless = found(1e9, || 1.0).0;
        assert_eq!((endless.borne, endless.too_much), (Some(1e6), None));
        let none = found(0.0, || 1.0).0;
        assert_eq!(none.borne, None);
        assert!(none.too_much.unwrap() <= 1.0);
    }
}
