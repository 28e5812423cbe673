//! Our clients, one for each of the recording's, and what each calls the scenario's locks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold::{Locks, Owner};
use leasehold_bench::proxy::{Leg, Mode, Proxy};
use leasehold_bench::servers::RedisServer;

use super::file::Scenario;
use super::kinds::OurLock;

/// A client and its handles of the scenario's locks, by alias.
pub(super) struct Client {
    pub(super) locks: Locks,
    pub(super) handles: BTreeMap<String, OurLock>,
    /// The way to the server of one that is killed.
    leg: Option<(Leg, Proxy)>,
}

/// All clients of a scenario, by name. Their scripts are known to the server, so from here on one attempt is one script call.
pub(super) async fn clients(scenario: &Scenario, server: &RedisServer) -> BTreeMap<String, Client> {
    let steps = || scenario.steps.iter();
    let killed: BTreeSet<&str> = steps()
        .filter(|step| step.what == "kill")
        .filter_map(|step| step.who.as_deref())
        .collect();
    let names: BTreeSet<&str> = steps().filter_map(|step| step.who.as_deref()).map(client_of).collect();
    let mut clients = BTreeMap::new();
    for name in names {
        let client = Client::new(scenario, server, killed.contains(name)).await;
        clients.insert(name.to_owned(), client);
    }
    if let Some(client) = clients.values().next() {
        for handle in client.handles.values() {
            // The parts of a majority are locks of the scenario as well.
            if let OurLock::Single(_) = handle {
                let held = handle.acquire(&Owner::default(), Some(Duration::ZERO), None).await;
                held.unwrap().expect("nobody else is there").release().await.unwrap();
            }
        }
    }
    redis::cmd("FLUSHALL").exec(&mut tests::direct(server)).unwrap();
    clients
}

/// Of `A:1` the `A`.
pub(super) fn client_of(who: &str) -> &str {
    who.split(':').next().unwrap_or(who)
}

impl Client {
    async fn new(scenario: &Scenario, server: &RedisServer, is_killed: bool) -> Client {
        let leg = is_killed.then(|| {
            let proxy = Proxy::start(server).unwrap();
            (proxy.leg().unwrap(), proxy)
        });
        let url = leg.as_ref().map_or_else(|| server.url(), |(leg, _)| leg.url());
        let settings = Locks::builder()
            .standalone(&url)
            .watchdog_time(Duration::from_millis(scenario.watchdog_ms))
            .fair_wait_time(Duration::from_millis(scenario.fair_wait_ms));
        let locks = settings.clone().build().await.expect("a server of our own");
        let mut handles = BTreeMap::new();
        for (alias, spec) in &scenario.locks {
            handles.insert(alias.clone(), OurLock::new(&locks, &settings, spec).await);
        }
        Client { locks, handles, leg }
    }

    /// From now on nothing comes from it, and nothing reaches it.
    pub(super) fn kill(&self) {
        let (leg, _) = self.leg.as_ref().expect("it is killed in this scenario");
        leg.switch(Mode::Refuse).unwrap();
    }
}
