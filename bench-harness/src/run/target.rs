//! The server under test: one of ours, or the user's.

use std::time::Duration;

use crate::driver;
use crate::proxy::Upstream;
use crate::scenario::Scenario;
use crate::servers::{RedisServer, ServerOptions};

use super::RunError;

/// The server under test.
#[derive(Debug)]
pub(crate) enum Target {
    /// Started by us; they end with this value. Several for a lock over independent masters.
    Own(Vec<RedisServer>),
    /// The user's, with its version.
    Theirs { url: String, version: String },
}

/// What a server has executed since it was started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Executed {
    /// Scripts that clients called.
    pub(super) scripts: u64,
    /// Microseconds spent in them.
    pub(super) script_us: u64,
    /// Scripts and subscriptions: all that the clients of a lock send.
    pub(super) sent: u64,
}

impl Target {
    /// Starts a server as the scenario says, or finds the one it names.
    pub(crate) fn open(scenario: &Scenario) -> Result<Self, RunError> {
        let Some(url) = &scenario.redis.url else {
            let lines = scenario.redis.config.iter();
            let mut config: Vec<_> = lines.map(|(name, value)| format!("{name} {value}")).collect();
            let append_only = scenario.reads_append_only();
            if append_only {
                // A rewrite would take away what happened; and nobody reads it after a loss of power.
                config.push("auto-aof-rewrite-percentage 0".to_owned());
                if !scenario.redis.config.contains_key("appendfsync") {
                    config.push("appendfsync no".to_owned());
                }
            }
            let options = ServerOptions { append_only, config };
            let masters = (0..scenario.lock.kind.masters()).map(|_| RedisServer::start(&options));
            return Ok(Self::Own(masters.collect::<Result<_, _>>()?));
        };
        Upstream::try_from_url(url)?;
        let unreachable = |cause| unreachable(url, &cause);
        let mut connection = connect(url).map_err(unreachable)?;
        let server: String = redis::cmd("INFO")
            .arg("server")
            .query(&mut connection)
            .map_err(unreachable)?;
        let version = field(&server, "redis_version").unwrap_or("unknown").to_owned();
        Ok(Self::Theirs {
            url: url.clone(),
            version,
        })
    }

    /// Where to reach each master directly.
    pub(crate) fn urls(&self) -> Vec<String> {
        match self {
            Self::Own(servers) => servers.iter().map(RedisServer::url).collect(),
            Self::Theirs { url, .. } => vec![url.clone()],
        }
    }

    /// The processes, if they are ours.
    pub(crate) fn own(&self) -> Option<&[RedisServer]> {
        match self {
            Self::Own(servers) => Some(servers),
            Self::Theirs { .. } => None,
        }
    }

    /// What it says it is.
    pub(crate) fn version(&self) -> String {
        match self {
            Self::Own(servers) => {
                let (major, minor, patch) = servers[0].version();
                format!("{major}.{minor}.{patch}")
            }
            Self::Theirs { version, .. } => version.clone(),
        }
    }

    /// Where a proxy passes connections on to, for each master.
    pub(crate) fn upstreams(&self) -> Result<Vec<Upstream>, RunError> {
        match self {
            Self::Own(servers) => Ok(servers.iter().map(Upstream::from).collect()),
            Self::Theirs { url, .. } => Ok(vec![Upstream::try_from_url(url)?]),
        }
    }

    /// The URL of a leg, with the user, password and database of the server behind it.
    pub(super) fn through(&self, leg_url: &str) -> String {
        let Self::Theirs { url, .. } = self else {
            return leg_url.to_owned();
        };
        let Some(parts) = Parts::of(url) else {
            return leg_url.to_owned();
        };
        let leg = leg_url.trim_start_matches("redis://").trim_end_matches('/');
        format!("redis://{}{leg}{}", parts.user, parts.rest)
    }

    /// Seconds of processor time that all its masters have used so far.
    pub(super) fn cpu_s(&self) -> Result<f64, RunError> {
        let infos: Vec<String> = self.ask(|master| redis::cmd("INFO").arg("cpu").query(master))?;
        let of = |info: &str, name: &str| {
            field(info, name)
                .and_then(|value| value.parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        let seconds = infos
            .iter()
            .map(|info| of(info, "used_cpu_sys") + of(info, "used_cpu_user"));
        Ok(seconds.sum())
    }

    /// What all its masters have executed so far.
    pub(super) fn executed(&self) -> Result<Executed, RunError> {
        let stats: Vec<String> = self.ask(|master| redis::cmd("INFO").arg("commandstats").query(master))?;
        let mut executed = Executed::default();
        for of_master in stats.iter().map(|stats| Executed::read(stats)) {
            executed.scripts += of_master.scripts;
            executed.script_us += of_master.script_us;
            executed.sent += of_master.sent;
        }
        Ok(executed)
    }

    /// How many scripts took from these stocks, which are gone then.
    pub(super) fn taken(&self, stocks: &[String]) -> Result<u64, RunError> {
        Ok(self.ask(|master| driver::taken(master, stocks))?.into_iter().sum())
    }

    /// What each master answers.
    fn ask<T>(&self, ask: impl Fn(&mut redis::Connection) -> redis::RedisResult<T>) -> Result<Vec<T>, RunError> {
        let of_master = |url: String| {
            let answer = connect(&url).and_then(|mut connection| ask(&mut connection));
            answer.map_err(|cause| unreachable(&url, &cause))
        };
        self.urls().into_iter().map(of_master).collect()
    }
}

impl Executed {
    fn read(stats: &str) -> Self {
        let number = |command: &str, name: &str| {
            let fields = field(stats, &format!("cmdstat_{command}"))?;
            fields
                .split(',')
                .find_map(|field| field.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok())
        };
        let sum = |commands: &[&str], name: &str| commands.iter().filter_map(|command| number(command, name)).sum();
        let scripts = sum(&SCRIPTS, "calls");
        Self {
            scripts,
            script_us: sum(&SCRIPTS, "usec"),
            sent: scripts + sum(&SUBSCRIPTIONS, "calls"),
        }
    }
}

impl Upstream {
    /// The server of a URL, as the proxy reaches it.
    fn try_from_url(url: &str) -> Result<Self, RunError> {
        let wrong = |what| RunError::Url {
            url: without_secret(url),
            what,
        };
        if url.starts_with("rediss://") {
            return Err(wrong("the proxy cannot pass TLS on yet: give the plain port"));
        }
        if let Some(path) = url
            .strip_prefix("unix://")
            .or_else(|| url.strip_prefix("redis+unix://"))
        {
            return Ok(Self::Unix(path.split('?').next().unwrap_or(path).into()));
        }
        let parts = Parts::of(url).ok_or_else(|| wrong("write redis://host:port or unix:///path/to.sock"))?;
        let port = if parts.host.contains(':') { "" } else { ":6379" };
        Ok(Self::Tcp(format!("{}{port}", parts.host)))
    }
}

/// The parts of `redis://user:password@host:port/database`.
struct Parts<'a> {
    /// With its `@`, if there is a user.
    user: &'a str,
    host: &'a str,
    /// With its `/`, if there is a database.
    rest: &'a str,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Option<Self> {
        let text = url.strip_prefix("redis://")?;
        let (authority, rest) = text.split_at(text.find('/').unwrap_or(text.len()));
        let (user, host) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        (!host.is_empty()).then_some(Self { user, host, rest })
    }
}

/// The server under test does not answer.
pub(super) fn unreachable(url: &str, cause: &redis::RedisError) -> RunError {
    RunError::Unreachable {
        url: without_secret(url),
        cause: cause.to_string(),
    }
}

pub(super) fn connect(url: &str) -> Result<redis::Connection, redis::RedisError> {
    let connection = redis::Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// A URL as it may be printed.
fn without_secret(url: &str) -> String {
    match Parts::of(url) {
        Some(parts) if !parts.user.is_empty() => format!("redis://…@{}{}", parts.host, parts.rest),
        _ => url.to_owned(),
    }
}

const SCRIPTS: [&str; 6] = ["eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"];

const SUBSCRIPTIONS: [&str; 6] = [
    "subscribe",
    "unsubscribe",
    "psubscribe",
    "punsubscribe",
    "ssubscribe",
    "sunsubscribe",
];

/// How long an admin command may take; none is sent while a fault lasts.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leg_keeps_user_and_database_and_nothing_prints_the_password() {
        let url = "redis://me:secret@host:7000/3".to_owned();
        let target = Target::Theirs {
            url: url.clone(),
            version: String::new(),
        };
        assert_eq!(
            target.through("redis://127.0.0.1:5/"),
            "redis://me:secret@127.0.0.1:5/3"
        );
        assert_eq!(target.upstreams().unwrap(), [Upstream::Tcp("host:7000".to_owned())]);
        assert_eq!(without_secret(&url), "redis://…@host:7000/3");
    }

    #[test]
    fn a_url_the_proxy_cannot_pass_on_is_refused() {
        for url in ["rediss://host", "http://host", "redis://"] {
            assert!(
                matches!(Upstream::try_from_url(url), Err(RunError::Url { .. })),
                "{url}"
            );
        }
        assert_eq!(
            Upstream::try_from_url("redis://host").unwrap(),
            Upstream::Tcp("host:6379".to_owned())
        );
    }

    #[test]
    fn scripts_are_counted_from_command_statistics() {
        let stats = "# Commandstats\r\ncmdstat_evalsha:calls=7,usec=90,usec_per_call=1\r\ncmdstat_info:calls=3,usec=5\r\n\
                     cmdstat_eval:calls=1,usec=10\r\ncmdstat_subscribe:calls=2,usec=4\r\n";
        let executed = Executed::read(stats);
        assert_eq!((executed.scripts, executed.script_us, executed.sent), (8, 100, 10));
    }
}
