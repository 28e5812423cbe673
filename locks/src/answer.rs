//! The one classifier of what Redis answers when a command has no result.

use std::sync::Arc;

use redis::RedisError;

use crate::error::CallError;

/// Sorts an error that came for a command which was handed to the connection.
pub(crate) fn classify(script: &'static str, error: RedisError) -> CallError {
    let Some(code) = code(&error).map(Box::<str>::from) else {
        return CallError::Unanswered {
            script,
            source: Some(Arc::new(error)),
        };
    };
    let source = Arc::new(error);
    match &*code {
        "WRONGTYPE" | "WRONGKIND" => CallError::WrongKeyType { script, source },
        "CROSSSLOT" => CallError::KeysApart { script, source },
        "NOAUTH" | "WRONGPASS" | "NOPERM" => CallError::Denied { script, code, source },
        // Also what this version does not know: Redis has answered, and it was no.
        _ => CallError::Refused { script, code, source },
    }
}

/// Whether the server says that this user may not do it, or that it does not know the command.
pub(crate) fn is_forbidden(error: &RedisError) -> bool {
    match code(error) {
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => true,
        Some("ERR") => error.detail().is_some_and(|detail| detail.contains("unknown command")),
        _ => error.kind() == redis::ErrorKind::AuthenticationFailed,
    }
}

/// Whether the server does not know a script by its hash.
pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    code(error) == Some("NOSCRIPT")
}

/// The first word of an error that the server sent; `None` if it came from the way there or back.
fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    // Before Redis 7 an error inside a script arrives as ERR with the real one in its text; a missing permission still does.
    if code == "ERR" {
        let detail = error.detail().unwrap_or_default();
        if detail.contains("script") {
            // Redis 7 words a missing permission differently inside a script.
            if detail.contains("executing the script can't") {
                return Some("NOPERM");
            }
            let inner = INSIDE_SCRIPTS.iter().find(|inner| detail.contains(**inner));
            return Some(inner.copied().unwrap_or(code));
        }
    }
    Some(code)
}

/// The errors that a command inside a script can meet.
const INSIDE_SCRIPTS: [&str; 7] = [
    "WRONGTYPE",
    "READONLY",
    "OOM",
    "NOREPLICAS",
    "MISCONF",
    "NOPERM",
    "CROSSSLOT",
];

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The class of an error as the server sends it.
    pub(crate) fn of(line: &str) -> CallError {
        let mut parser = redis::Parser::new();
        let value = parser.parse_value(format!("-{line}\r\n").as_bytes()).unwrap();
        classify("renew", value.extract_error().unwrap_err())
    }

    #[test]
    fn every_error_code_has_its_class() {
        let refused = [
            "LOADING Redis is loading the dataset in memory",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "READONLY You can't write against a read only replica.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "CLUSTERDOWN The cluster is down",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Errors writing to the AOF file: No space left on device",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "ERR max number of clients reached",
            "MOVED 3999 127.0.0.1:6381",
            "ASK 3999 127.0.0.1:6381",
            "NOSCRIPT No matching script. Please use EVAL.",
            "NOMASTERLINK Can't SYNC while not connected with my master",
            "NOGOODSLAVE No suitable replica to promote",
            "EXECABORT Transaction discarded because of previous errors.",
            "UNKILLABLE Sorry the script already executed write commands against the dataset.",
            "NOTBUSY No scripts in execution right now.",
            "BUSYKEY Target key name already exists.",
            "IOERR error or timeout writing to target instance",
            "INPROG Failover already in progress",
            "UNBLOCKED client unblocked via CLIENT UNBLOCK",
            "DENIED Redis is running in protected mode because protected mode is enabled",
            "NOPROTO unsupported protocol version",
            "REDIRECT 127.0.0.1:6381",
            "ERR unknown command 'EVALSHA'",
            "SOMETHING that no version has said yet",
        ];
        for line in refused {
            let class = of(line);
            let word = line.split(' ').next().unwrap();
            assert!(
                matches!(&class, CallError::Refused { code, .. } if &**code == word),
                "{line}: {class:?}"
            );
            assert!(class.is_retryable() && !class.outcome_unknown(), "{line}");
        }
        for line in [
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair",
            "NOPERM no permissions",
        ] {
            let class = of(line);
            assert!(matches!(class, CallError::Denied { .. }), "{line}: {class:?}");
            assert!(!class.is_retryable());
        }
        let wrong =
            of("WRONGTYPE Operation against a key holding the wrong kind of value script: 1a2b, on @user_script:5.");
        assert!(matches!(wrong, CallError::WrongKeyType { .. }));
        let apart = of("CROSSSLOT Keys in request don't hash to the same slot");
        assert!(matches!(apart, CallError::KeysApart { .. }) && !apart.is_retryable());
    }

    #[test]
    fn an_error_inside_a_script_is_unpacked() {
        let old = of("ERR Error running script (call to f_12): @user_script:9: WRONGTYPE Operation against a key");
        assert!(matches!(old, CallError::WrongKeyType { .. }), "{old:?}");
        let denied =
            of("ERR The user executing the script can't run this command or subcommand script: 1a, on @user_script:5.");
        assert!(matches!(denied, CallError::Denied { .. }), "{denied:?}");
    }

    #[test]
    fn an_error_of_the_way_leaves_the_outcome_unknown() {
        let io = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        let class = classify("renew", io);
        assert!(class.outcome_unknown() && class.is_retryable());
    }
}
