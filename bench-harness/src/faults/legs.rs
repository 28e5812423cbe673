//! Faults of the proxy: a mode of some legs.

use std::thread;

use super::FaultError;
use crate::clock;
use crate::proxy::{Leg, Mode, ProxyError};

/// Legs that were switched, each with the mode it had before.
#[derive(Debug)]
pub(super) struct Switched(Vec<(Leg, Mode)>);

impl Switched {
    /// Switches all legs at one moment; if one cannot be, all return to what they were.
    pub(super) fn to(mode: Mode, legs: &[Leg]) -> Result<Self, ProxyError> {
        let with = |mode: &dyn Fn(&Leg) -> Mode| legs.iter().map(|leg| (leg.clone(), mode(leg))).collect();
        let (before, struck): (Vec<_>, Vec<_>) = (with(&Leg::mode), with(&|_| mode));
        if let Err(error) = at_once(&struck) {
            // The error that matters is the first.
            let _ = at_once(&before);
            return Err(error);
        }
        Ok(Self(before))
    }

    /// Tells when all were what they had been.
    pub(super) fn heal(self) -> Result<u64, FaultError> {
        at_once(&self.0)?;
        Ok(clock::now_ns())
    }
}

/// Switches all legs at one moment; every one is tried, and the first error told.
fn at_once(legs: &[(Leg, Mode)]) -> Result<(), ProxyError> {
    thread::scope(|scope| {
        let switching: Vec<_> = legs
            .iter()
            .map(|(leg, mode)| scope.spawn(|| leg.switch(*mode)))
            .collect();
        let mut all = Ok(());
        for one in switching {
            match one.join() {
                Ok(switched) => all = all.and(switched),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    })
}
