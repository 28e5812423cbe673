//! Where Redis is, and one open link to it. Nothing here reconnects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError, Value};
use tokio::time::timeout;

use crate::answer;
use crate::error::{BuildError, CallError};
use crate::script::Call;

/// Where Redis is.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    client: redis::Client,
}

impl Address {
    /// Reads an address: `redis://host:port/db`, `rediss://`, `unix:///path`.
    pub(crate) fn parse(url: &str) -> Result<Self, BuildError> {
        let wrong = |source| BuildError::Address {
            url: without_password(url),
            source,
        };
        let info = url.into_connection_info().map_err(wrong)?;
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        let client = redis::Client::open(info).map_err(wrong)?;
        Ok(Address { client })
    }
}

/// The address for an error message.
pub(crate) fn without_password(url: &str) -> String {
    // The query can hold one too.
    let url = url.split('?').next().unwrap_or_default();
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => format!("{}{}", &url[..scheme + 3], &url[at + 1..]),
        _ => url.to_owned(),
    }
}

/// One open link to a server. Its driver lives on the runtime that opened it.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) redis: MultiplexedConnection,
    alive: Arc<AtomicBool>,
    /// `None` if nobody asked for it, or this user may not.
    pub(crate) identity: Option<Arc<Identity>>,
}

/// By which the server knows a link. A restarted server counts its clients anew, so the run belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    run: String,
    client: i64,
}

impl Link {
    /// Opens a link that listens to no channel.
    pub(crate) async fn open(address: &Address, limit: Duration) -> Result<Link, CallError> {
        within(limit, Self::connect(address, |_| ())).await
    }

    /// Opens a link; `hear` is told of every push that comes.
    pub(crate) async fn connect(
        address: &Address,
        hear: impl Fn(&PushInfo) + Send + Sync + 'static,
    ) -> Result<Link, RedisError> {
        let alive = Arc::new(AtomicBool::new(true));
        let flag = Flag(alive.clone());
        let pushes = move |info: PushInfo| {
            if info.kind == PushKind::Disconnection {
                flag.lower();
            }
            hear(&info);
            Ok::<(), std::convert::Infallible>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_push_sender(pushes)
            .set_response_timeout(None)
            .set_connection_timeout(None);
        let redis = address
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(Link {
            redis,
            alive,
            identity: None,
        })
    }

    /// By which the server knows this link, if this user may ask, and may end links by it.
    pub(crate) async fn identify(&self) -> Result<Option<Arc<Identity>>, RedisError> {
        let mut id = redis::cmd("CLIENT");
        id.arg("ID");
        let mut info = redis::cmd("INFO");
        info.arg("server");
        // No client has this id, so nothing but the right is asked for.
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("ID").arg(0);
        let (id, info, kill) = tokio::join!(self.send(&id), self.send(&info), self.send(&kill));
        if kill.is_err_and(|error| answer::is_forbidden(&error)) {
            return Ok(None);
        }
        let (id, info) = match (id, info) {
            (Ok(id), Ok(info)) => (id, info),
            // The link works, it just cannot be named.
            (Err(error), _) | (_, Err(error)) if answer::is_forbidden(&error) => return Ok(None),
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        let info: String = redis::from_redis_value(info)?;
        let Some(run) = info.lines().find_map(|line| line.strip_prefix("run_id:")) else {
            return Ok(None);
        };
        Ok(Some(Arc::new(Identity {
            run: run.to_owned(),
            client: redis::from_redis_value(id)?,
        })))
    }

    /// Whether the link has not been closed yet, as far as is known.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Runs a call; a script that the server does not know is sent along within it.
    pub(crate) async fn run(&self, call: &Call) -> Result<Value, CallError> {
        match self.send(&call.command).await {
            Err(error) if answer::is_unknown_script(&error) => self.send(&call.with_body()).await,
            other => other,
        }
        .map_err(|error| {
            if error.is_unrecoverable_error() {
                self.alive.store(false, Ordering::Release);
            }
            answer::classify(call.text.name, error)
        })
    }

    async fn send(&self, command: &redis::Cmd) -> Result<Value, RedisError> {
        let mut redis = self.redis.clone();
        redis.send_packed_command(command).await?.extract_error()
    }

    /// Ends links on the server. What was in flight on them has run, or never will. A restarted server has ended them itself.
    pub(crate) async fn fence(&self, doomed: &[Option<Arc<Identity>>]) -> Result<(), RedisError> {
        for old in doomed {
            let (Some(old), Some(own)) = (old, &self.identity) else {
                return Err((
                    redis::ErrorKind::AuthenticationFailed,
                    "this user may not run CLIENT ID, CLIENT KILL and INFO",
                )
                    .into());
            };
            if old.run != own.run {
                continue;
            }
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(old.client);
            self.send(&kill).await?;
        }
        Ok(())
    }
}

/// Lowered when the link's driver says that it is closed, or ends itself.
struct Flag(Arc<AtomicBool>);

impl Flag {
    fn lower(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        self.lower();
    }
}

pub(crate) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, CallError> {
    match timeout(limit, work).await {
        Ok(result) => result.map_err(|error| {
            let forbidden = answer::is_forbidden(&error);
            let code = error.code().unwrap_or("AUTH").into();
            let source = Arc::new(error);
            match forbidden {
                true => CallError::Denied {
                    script: "connect",
                    code,
                    source,
                },
                false => CallError::Unreachable { source: Some(source) },
            }
        }),
        Err(_) => Err(CallError::Unreachable { source: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        assert_eq!(without_password("redis://user:se:cr@t@host:1/2"), "redis://host:1/2");
        assert_eq!(without_password("redis://host/"), "redis://host/");
        assert_eq!(
            without_password("unix:///run/r.sock?user=me&pass=secret"),
            "unix:///run/r.sock"
        );
        assert_eq!(without_password("nonsense"), "nonsense");
    }

    #[test]
    fn a_wrong_address_says_what_to_write() {
        let error = Address::parse("htp:/nowhere").unwrap_err();
        assert!(error.to_string().contains("redis://host:port/"), "{error}");
        assert!(Address::parse("unix:///tmp/redis.sock").is_ok());
    }
}
