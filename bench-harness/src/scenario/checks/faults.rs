//! What the faults of a scenario must be to make sense.

use super::{Wrong, ensure};
use crate::real::RealClient;
use crate::scenario::{FaultKind, LockType, Model, Place, Scenario, Scope, When};

/// Refuses faults that contradict themselves, one another or the workload.
pub(super) fn check(scenario: &Scenario) -> Result<(), Wrong> {
    let held = scenario.workload.model == Model::Held;
    for (index, fault) in scenario.faults.iter().enumerate() {
        let path = |key: &str| format!("fault.{index}.{key}");
        let lasts = fault.kind != FaultKind::KillClient9;
        ensure(lasts != fault.length.0.is_zero(), path("for"), || match lasts {
            true => "a fault of no length is none: say how long it lasts, as for = \"5s\"".to_owned(),
            false => "who is killed stays dead: leave it out".to_owned(),
        })?;
        match fault.scope {
            Scope::All => {}
            Scope::Holders | Scope::Rivals => ensure(held, path("scope"), || {
                "only the model \"held\" tells holders from rivals: use scope = \"all\", or a share as \"share:0.3\""
                    .to_owned()
            })?,
            Scope::Share(_) => ensure(!held && scenario.workload.processes > 1, path("scope"), || {
                match held {
                    true => "in the model \"held\" all locks of a policy are held by one process: use scope = \"holders\" or \"rivals\"",
                    false => "a single process cannot be struck in part: write processes = 2 or more below [workload]",
                }
                .to_owned()
            })?,
        }
        let of_workers = matches!(fault.kind.place(), Place::Proxy | Place::Worker);
        ensure(of_workers || fault.scope == Scope::All, path("scope"), || {
            format!(
                "{} strikes the whole server: use scope = \"all\", or a fault of the proxy (refuse, swallow, hold, deliver, latency) \
                 or of workers (freeze_client, kill_client9, drop_future)",
                fault.kind.name()
            )
        })?;
        ensure(!held || fault.kind.family().is_some(), path("kind"), || {
            format!(
                "there is no model of what {} does to renewals, so no lock could be held against it: use the model \"closed\" or \
                 \"open\"",
                fault.kind.name()
            )
        })?;
        worker(scenario, index).map_err(|(key, message)| Wrong {
            path: path(key),
            message,
        })?;
        let is_latency = fault.kind == FaultKind::Latency;
        ensure(
            is_latency == fault.delay.is_some(),
            path("delay"),
            || match is_latency {
                true => "say how much later everything arrives, as delay = \"100ms\"".to_owned(),
                false => "only latency has a delay: leave it out".to_owned(),
            },
        )?;
        ensure(is_latency || fault.jitter.is_none(), path("jitter"), || {
            "only latency has a jitter: leave it out".to_owned()
        })?;
        let restarts = fault.kind == FaultKind::Restart;
        ensure(restarts || fault.persist.is_none(), path("persist"), || {
            "only restart loses or keeps data: leave it out".to_owned()
        })?;
        let append_only = scenario
            .redis
            .config
            .get("appendonly")
            .is_some_and(|value| value == "yes");
        ensure(
            !restarts || append_only || fault.persist == Some(false),
            path("persist"),
            || {
                "a server without an append-only file comes back empty: write persist = false, or \
                 config = { appendonly = \"yes\" } below [redis]"
                    .to_owned()
            },
        )?;
        let masters = scenario.lock.kind.masters();
        ensure(
            fault
                .masters
                .is_none_or(|count| masters > 1 && (1..=masters).contains(&count)),
            path("masters"),
            || match masters {
                1 => "only a lock of the type \"quorum\" has several masters: leave it out".to_owned(),
                _ => format!("a fault strikes 1 to {masters} masters: that is how many lockbench starts"),
            },
        )?;
        ensure(held || fault.at < scenario.workload.duration, path("at"), || {
            format!("it would begin after the measured {}", scenario.workload.duration)
        })?;
        moment(scenario, index).map_err(|(key, message)| Wrong {
            path: path(key),
            message,
        })?;
    }
    ensure(!held || !scenario.faults.is_empty(), "fault", || {
        "the model \"held\" has a round for each fault: write at least one [[fault]]".to_owned()
    })
}

/// Whether the workers of this scenario can be struck by a fault; else the key that is wrong, and why.
fn worker(scenario: &Scenario, index: usize) -> Result<(), (&'static str, String)> {
    let fault = &scenario.faults[index];
    if fault.kind.place() != Place::Worker {
        return Ok(());
    }
    let name = fault.kind.name();
    if scenario
        .policies()
        .iter()
        .any(|policy| RealClient::of(policy).is_some())
    {
        return Err((
            "kind",
            format!("a real client is a process of its own, which {name} does not reach: leave it out"),
        ));
    }
    if scenario.workload.model == Model::Open && fault.kind != FaultKind::DropFuture {
        let instead = if fault.kind.family().is_some() {
            " or \"held\""
        } else {
            ""
        };
        return Err((
            "kind",
            format!("{name} would strike the generator of the model \"open\" as well: use \"closed\"{instead}"),
        ));
    }
    if fault.kind != FaultKind::KillClient9 {
        return Ok(());
    }
    if scenario.lock.kind == LockType::Script {
        return Err((
            "kind",
            "a script in place of a lock is never held, so nobody can be killed under it: leave it out".to_owned(),
        ));
    }
    if !matches!(fault.scope, Scope::Share(_)) {
        return Err((
            "scope",
            "somebody has to live on to find the locks of the dead: write scope = \"share:0.5\"".to_owned(),
        ));
    }
    let others = scenario.faults[..index].iter().filter(|other| other.kind == fault.kind);
    if fault.every.is_some() || others.count() > 0 {
        return Err((
            "kind",
            "who is killed stays dead: write one kill_client9, without every, with the share that is to die".to_owned(),
        ));
    }
    Ok(())
}

/// What a fault says of when it strikes; else the key that is wrong, and why.
fn moment(scenario: &Scenario, index: usize) -> Result<(), (&'static str, String)> {
    let (faults, held) = (&scenario.faults, scenario.workload.model == Model::Held);
    let fault = &faults[index];
    let ensure = |holds: bool, key, message: &str| if holds { Ok(()) } else { Err((key, message.to_owned())) };
    ensure(
        held || fault.phase.is_uniform(),
        "phase",
        "only the model \"held\" has renewals in step: leave it out",
    )?;
    let keys = [
        ("name", fault.name.is_some()),
        ("every", fault.every.is_some()),
        ("when", fault.when.is_some()),
    ];
    for (key, is_there) in keys {
        ensure(
            !held || !is_there,
            key,
            "in the model \"held\" each fault is a round of its own: leave it out",
        )?;
    }
    for (key, is_there) in [
        ("every_jitter", fault.every_jitter.is_some()),
        ("count", fault.count.is_some()),
    ] {
        ensure(
            !is_there || fault.every.is_some(),
            key,
            "it belongs to every = \"10s\", for a fault that strikes again: write both, or neither",
        )?;
    }
    ensure(
        fault.count != Some(0),
        "count",
        "a fault that never strikes is none: write 1 or more",
    )?;
    ensure(
        fault.every.is_none() || fault.when.is_none(),
        "when",
        "a fault strikes every so often or when something happens: leave one of them out",
    )?;
    if let Some(every) = fault.every {
        ensure(
            every > fault.length,
            "every",
            "it would strike again before it is over: write a longer time than that of for",
        )?;
        ensure(
            fault.every_jitter.is_none_or(|jitter| jitter < every),
            "every_jitter",
            "it has to be shorter than every, or faults would change places",
        )?;
    }
    if let Some(name) = &fault.name {
        ensure(
            faults.iter().filter(|other| other.name.as_ref() == Some(name)).count() == 1,
            "name",
            "another fault bears the same name: give each its own",
        )?;
    }
    if let Some(When::After { fault: other, .. }) = &fault.when {
        let is_before = faults[..index].iter().any(|before| before.name.as_ref() == Some(other));
        ensure(
            is_before,
            "when",
            &format!("no fault above this one bears name = {other:?}: name the one it follows, and write it first"),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a scenario with these faults, written below a load of two processes or a `held` workload.
    fn refusal(model: &str, faults: &str) -> String {
        let load = format!(
            "schema = 1\nname = \"t\"\nquestion = \"?\"\n[lock]\ntype = \"reentrant\"\n[workload]\nmodel = \"{model}\"\n\
             processes = 2\nclients = 4\nduration = \"5s\"\nhold = {{ kind = \"fixed\", mean = \"1ms\" }}\nkeys = {{ count = 5 }}\n"
        );
        let read = Scenario::parse("t.toml", &format!("{load}{faults}"), &[]);
        read.map_or_else(|error| error.to_string(), |_| String::new())
    }

    fn fault(rest: &str) -> String {
        format!("[[fault]]\nkind = \"refuse\"\nat = \"1s\"\nfor = \"1s\"\n{rest}\n")
    }

    #[test]
    fn faults_that_fit_are_taken() {
        for rest in [
            "scope = \"share:0.5\"",
            "every = \"2s\"\nevery_jitter = \"500ms\"\ncount = 2",
            "when = \"held>=2\"",
            "when = \"waiters>=1\"",
        ] {
            assert_eq!(refusal("closed", &fault(rest)), "", "{rest}");
        }
        for of_workers in [
            "kind = \"freeze_client\"\nfor = \"1s\"",
            "kind = \"kill_client9\"\nscope = \"share:0.5\"",
            "kind = \"drop_future\"\nfor = \"1s\"",
        ] {
            assert_eq!(
                refusal("closed", &format!("[[fault]]\nat = \"1s\"\n{of_workers}\n")),
                ""
            );
        }
        let two = fault("name = \"first\"") + &fault("when = \"after(first)+1s\"");
        assert_eq!(refusal("closed", &two), "");
        for rest in ["scope = \"rivals\"", "phase = \"just_before\"", "phase = \"sweep(4)\""] {
            assert_eq!(refusal("held", &fault(rest)), "", "{rest}");
        }
    }

    #[test]
    fn faults_that_do_not_fit_are_refused_with_what_to_do() {
        let cases = [
            ("closed", "scope = \"rivals\"", "only the model \"held\""),
            ("held", "scope = \"share:0.5\"", "use scope = \"holders\""),
            ("closed", "scope = \"share:2\"", "from 0.001 to 0.999"),
            ("closed", "phase = \"just_after\"", "only the model \"held\""),
            ("held", "phase = \"later\"", "is no phase"),
            ("held", "every = \"3s\"", "a round of its own"),
            ("held", "when = \"held>=1\"", "a round of its own"),
            ("held", "name = \"first\"", "a round of its own"),
            ("closed", "count = 2", "write both"),
            ("closed", "every_jitter = \"1s\"", "write both"),
            ("closed", "every = \"500ms\"", "before it is over"),
            ("closed", "every = \"2s\"\nevery_jitter = \"2s\"", "change places"),
            ("closed", "every = \"2s\"\ncount = 0", "never strikes"),
            ("closed", "every = \"2s\"\nwhen = \"held>=1\"", "leave one of them out"),
            ("closed", "when = \"lost>=1\"", "nothing to wait for"),
            ("closed", "when = \"after(first)+1s\"", "no fault above this one"),
            (
                "closed",
                "name = \"me\"\nwhen = \"after(me)+1s\"",
                "no fault above this one",
            ),
        ];
        let more = [
            (
                "closed",
                "kind = \"kill_client9\"\nscope = \"share:0.5\"\nfor = \"1s\"",
                "leave it out",
            ),
            ("closed", "kind = \"kill_client9\"", "somebody has to live on"),
            (
                "closed",
                "kind = \"kill_client9\"\nscope = \"share:0.5\"\nevery = \"2s\"",
                "stays dead",
            ),
            ("closed", "kind = \"drop_future\"", "a fault of no length"),
            ("held", "kind = \"drop_future\"\nfor = \"1s\"", "there is no model"),
        ];
        for (model, rest, message) in more {
            let said = refusal(model, &format!("[[fault]]\nat = \"1s\"\n{rest}\n"));
            assert!(said.contains(message), "{rest}: {said:?}");
        }
        for (model, rest, message) in cases {
            let said = refusal(model, &fault(rest));
            assert!(said.contains(message), "{rest}: {said:?}");
        }
        let twins = fault("name = \"a\"") + &fault("name = \"a\"");
        assert!(refusal("closed", &twins).contains("bears the same name"));
    }
}
