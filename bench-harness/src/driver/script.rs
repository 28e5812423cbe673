//! No lock: one atomic script does all of the work when it is asked. What it does is take one from a stock, unless none is left.

use std::future::{Future, pending, ready};
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, Script};

use super::{Access, Driver, Hold, Refusal};

/// Does the work in one script, in place of a lock.
#[derive(Clone)]
pub struct ScriptDriver {
    connection: MultiplexedConnection,
    take_one: Arc<Script>,
    look: Arc<Script>,
}

/// The work, which is over.
#[derive(Clone, Copy, Debug)]
pub struct Done;

impl ScriptDriver {
    /// Connects.
    ///
    /// # Errors
    /// What the client says, in words.
    pub async fn connect(url: &str, command_timeout: Duration) -> Result<Self, String> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(command_timeout));
        let connect = async {
            redis::Client::open(url)?
                .get_multiplexed_async_connection_with_config(&config)
                .await
        };
        Ok(Self {
            connection: connect.await.map_err(|error: RedisError| error.to_string())?,
            take_one: Arc::new(Script::new(TAKE_ONE)),
            look: Arc::new(Script::new(LOOK)),
        })
    }

    async fn ask(&self, name: &str, access: Access) -> Result<bool, RedisError> {
        let mut connection = self.connection.clone();
        match access {
            Access::Write => {
                let mut take_one = self.take_one.key(name);
                let take_one = take_one.arg(STOCK).arg(KEPT.as_millis() as u64);
                let left: i64 = take_one.invoke_async(&mut connection).await?;
                Ok(left >= 0)
            }
            Access::Read => {
                let _left: Option<u64> = self.look.key(name).invoke_async(&mut connection).await?;
                Ok(true)
            }
        }
    }
}

/// How many were taken from these stocks, which are gone then.
///
/// # Errors
/// What the client says.
pub fn taken(connection: &mut redis::Connection, names: &[String]) -> Result<u64, RedisError> {
    let mut taken = 0;
    for names in names.chunks(NAMES_AT_ONCE) {
        let mut read = redis::pipe();
        for name in names {
            read.cmd("GETDEL").arg(name);
        }
        let left: Vec<Option<u64>> = read.query(connection)?;
        taken += left
            .into_iter()
            .flatten()
            .map(|left| STOCK.saturating_sub(left))
            .sum::<u64>();
    }
    Ok(taken)
}

impl Driver for ScriptDriver {
    type Hold = Done;

    /// Waits for nobody, so `wait` does not count.
    async fn acquire(&self, name: &str, access: Access, _wait: Duration) -> Result<Done, Refusal> {
        match self.ask(name, access).await {
            Ok(true) => Ok(Done),
            Ok(false) => Err(Refusal::Failed("the stock is used up".to_owned())),
            Err(error) => Err(Refusal::Failed(error.to_string())),
        }
    }

    fn close(self) -> impl Future<Output = ()> + Send {
        ready(())
    }
}

impl Hold for Done {
    fn is_held(&self) -> bool {
        false
    }

    fn attempts(&self) -> u64 {
        1
    }

    fn fence(&self) -> u64 {
        0
    }

    fn is_valid(&self) -> bool {
        true
    }

    fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        pending()
    }

    fn reenter(&self, _wait: Duration) -> impl Future<Output = Result<Self, Refusal>> + Send {
        ready(Ok(Self))
    }

    fn release(self) -> impl Future<Output = Result<bool, Refusal>> + Send {
        ready(Ok(true))
    }
}

/// KEYS[1]: how many are left. ARGV: how many there are at first; for how many milliseconds it is kept.
/// Returns how many are left, or -1 if there was none to take.
const TAKE_ONE: &str = "\
local stock, at_first, kept_ms = KEYS[1], ARGV[1], ARGV[2]
local left = tonumber(redis.call('GET', stock) or at_first)
if left < 1 then
    return -1
end
redis.call('SET', stock, left - 1, 'PX', kept_ms)
return left - 1";

/// KEYS[1]: how many are left. Returns that; nothing as long as none was taken.
const LOOK: &str = "return redis.call('GET', KEYS[1])";

/// More than any run takes.
const STOCK: u64 = 1_000_000_000;

/// Where nobody takes the stocks away in the end, they end by themselves.
const KEPT: Duration = Duration::from_secs(3600);

const NAMES_AT_ONCE: usize = 1_000;
