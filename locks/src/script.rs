//! The catalog: one [`Script`] for each file of `lua/`, with its number of keys and arguments as its type.

use std::borrow::Cow;
use std::sync::OnceLock;

/// A Lua script of the catalog with `K` keys and `A` arguments.
#[derive(Debug)]
pub(crate) struct Script<const K: usize, const A: usize> {
    text: Text,
}

/// A script over many locks: `K` keys and `A` arguments for all, then those of every lock.
#[derive(Debug)]
pub(crate) struct BatchScript<const K: usize, const A: usize> {
    text: Text,
}

/// A script's name, source and hash.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) name: &'static str,
    pub(crate) body: Cow<'static, str>,
    sha: OnceLock<String>,
    /// The same behind a look at a tombstone.
    guarded: OnceLock<Box<Text>>,
}

impl Text {
    const fn new(name: &'static str, body: &'static str) -> Self {
        Text {
            name,
            body: Cow::Borrowed(body),
            sha: OnceLock::new(),
            guarded: OnceLock::new(),
        }
    }

    /// The script behind a look at a tombstone, which is the last argument. Who may not look goes on.
    fn guarded(&'static self) -> &'static Text {
        self.guarded.get_or_init(|| {
            let look = "if redis.pcall('EXISTS', ARGV[#ARGV]) == 1 then return {-1, 0} end";
            Box::new(Text {
                name: self.name,
                body: Cow::Owned(format!("{look}\n{}", self.body)),
                sha: OnceLock::new(),
                guarded: OnceLock::new(),
            })
        })
    }

    /// The SHA-1 of the body, by which EVALSHA finds it.
    pub(crate) fn sha(&self) -> &str {
        self.sha
            .get_or_init(|| redis::Script::new(&self.body).get_hash().to_owned())
    }
}

/// One script call, ready to be sent: EVALSHA with its keys and arguments.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) text: &'static Text,
    pub(crate) command: redis::Cmd,
}

impl Call {
    fn new(text: &'static Text, keys: usize) -> Self {
        // Room for a call of one lock, so that it grows at most once.
        let mut command = redis::Cmd::with_capacity(WORDS, BYTES);
        command.arg("EVALSHA").arg(text.sha()).arg(keys);
        Call { text, command }
    }

    /// The same call, that does nothing once this tombstone is there.
    pub(crate) fn unless_withdrawn(&self, tombstone: &[u8]) -> Call {
        let text = self.text.guarded();
        let mut command = redis::Cmd::new();
        command.arg("EVALSHA").arg(text.sha());
        for arg in self.command.args_iter().skip(2) {
            match arg {
                redis::Arg::Simple(bytes) => command.arg(bytes),
                _ => unreachable!("a call has plain arguments only: it is built by this module"),
            };
        }
        command.arg(tombstone);
        Call { text, command }
    }

    /// The number of keys, the keys and the arguments, for tests.
    #[cfg(test)]
    pub(crate) fn words(&self) -> Vec<String> {
        let text = |arg| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("a plain argument, not {other:?}"),
        };
        self.command.args_iter().skip(2).map(text).collect()
    }

    /// The same call with the script's body, for a server that does not know the hash.
    pub(crate) fn with_body(&self) -> redis::Cmd {
        let mut command = redis::Cmd::new();
        command.arg("EVAL").arg(&*self.text.body);
        for arg in self.command.args_iter().skip(2) {
            match arg {
                redis::Arg::Simple(bytes) => command.arg(bytes),
                _ => unreachable!("a call has plain arguments only: it is built by this module"),
            };
        }
        command
    }
}

/// Of most calls of one lock: words, and the bytes of all of them.
const WORDS: usize = 10;
const BYTES: usize = 256;

/// A key or an argument of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    /// As it is.
    Bytes(&'a [u8]),
    /// In decimal.
    Number(u64),
}

impl Value<'_> {
    fn push(self, command: &mut redis::Cmd) {
        match self {
            Value::Bytes(bytes) => command.arg(bytes),
            Value::Number(number) => command.arg(number),
        };
    }
}

impl<const K: usize, const A: usize> Script<K, A> {
    const fn new(name: &'static str, body: &'static str) -> Self {
        Script {
            text: Text::new(name, body),
        }
    }

    /// A call of this script.
    pub(crate) fn call(&'static self, keys: [&[u8]; K], args: [Value<'_>; A]) -> Call {
        let mut call = Call::new(&self.text, K);
        for key in keys {
            call.command.arg(key);
        }
        for arg in args {
            arg.push(&mut call.command);
        }
        call
    }
}

impl<const K: usize, const A: usize> BatchScript<K, A> {
    const fn new(name: &'static str, body: &'static str) -> Self {
        BatchScript {
            text: Text::new(name, body),
        }
    }

    /// A call of this script over these locks, each with its keys and its arguments.
    pub(crate) fn call<'a>(
        &'static self,
        keys: [&[u8]; K],
        args: [Value<'_>; A],
        locks: &[(Vec<&'a [u8]>, Vec<Value<'a>>)],
    ) -> Call {
        let of_locks: usize = locks.iter().map(|(keys, _)| keys.len()).sum();
        let mut call = Call::new(&self.text, K + of_locks);
        for key in keys
            .into_iter()
            .chain(locks.iter().flat_map(|(keys, _)| keys.iter().copied()))
        {
            call.command.arg(key);
        }
        for arg in args
            .into_iter()
            .chain(locks.iter().flat_map(|(_, args)| args.iter().copied()))
        {
            arg.push(&mut call.command);
        }
        call
    }
}

macro_rules! catalog {
    ($($(#[$doc:meta])* $name:ident: $kind:ident<$keys:literal, $args:literal> = $([$($fragment:literal),+])? $file:literal;)*) => {
        $($(#[$doc])* pub(crate) static $name: $kind<$keys, $args> = $kind::new($file, concat!(
            $($(include_str!(concat!("../lua/", $fragment, ".lua")),)+)?
            include_str!(concat!("../lua/", $file, ".lua")),
        ));)*

        #[cfg(test)]
        const CATALOG: &[(&str, &str, &str, usize, usize)] = &[
            $((stringify!($kind), $file, include_str!(concat!("../lua/", $file, ".lua")), $keys, $args),)*
        ];
        /// The fragments that are joined in front of scripts.
        #[cfg(test)]
        const FRAGMENTS: &[&str] = &[$($($($fragment,)+)?)*];
    };
}

// Names in brackets are the fragments that are joined in front.
catalog! {
    /// Takes a reentrant lock or raises its hold.
    REENTRANT_ACQUIRE: Script<1, 3> = ["free", "hold", "take"] "reentrant_acquire";
    /// Lowers a reentrant lock's hold, to nothing if told so.
    REENTRANT_RELEASE: Script<1, 3> = "reentrant_release";
    /// Takes a fenced lock or raises its hold.
    FENCED_ACQUIRE: Script<2, 3> = ["hold", "take", "fencing"] "fenced_acquire";
    /// Passes a reentrant lock on to another holder.
    HAND_OVER: Script<1, 3> = ["hold", "take", "pass"] "hand_over";
    /// Passes a fenced lock on to another holder.
    FENCED_HAND_OVER: Script<2, 3> = ["hold", "take", "pass", "fencing"] "fenced_hand_over";
    /// Takes a fair lock, raises its hold or queues for it.
    FAIR_ACQUIRE: Script<3, 5> = ["hold", "take", "fair_queue"] "fair_acquire";
    /// Lowers a fair lock's hold, to nothing if told so, and leaves its queue.
    FAIR_RELEASE: Script<3, 3> = ["hold", "fair_queue"] "fair_release";
    /// Wakes the first waiter of a fair lock that is free.
    FAIR_WAKE: Script<3, 1> = ["fair_queue"] "fair_wake";
    /// Tells who waits for a fair lock.
    WAITERS: Script<2, 0> = ["fair_queue"] "waiters";
    /// Takes a read hold or raises it.
    READ_ACQUIRE: Script<2, 4> = ["hold", "read_write", "take_read"] "read_acquire";
    /// Takes a read hold unless a writer waits.
    YIELDING_READ_ACQUIRE: Script<3, 4> = ["hold", "read_write", "take_read", "writers"] "yielding_read_acquire";
    /// Lowers a read hold, to nothing if told so.
    READ_RELEASE: Script<2, 3> = ["hold", "read_write"] "read_release";
    /// Takes a write hold or raises it.
    WRITE_ACQUIRE: Script<1, 3> = ["hold", "read_write", "take_write"] "write_acquire";
    /// Passes a write hold on to another holder.
    WRITE_HAND_OVER: Script<1, 3> = ["hold", "read_write", "take_write"] "write_hand_over";
    /// Lowers a write hold, to nothing if told so.
    WRITE_RELEASE: Script<1, 3> = ["hold", "read_write", "give_write"] "write_release";
    /// Takes a write hold or raises it, and lets readers know of a writer that waits.
    FIRST_WRITE_ACQUIRE: Script<2, 4> = ["hold", "read_write", "take_write", "writers"] "first_write_acquire";
    /// Passes such a write hold on to another holder.
    FIRST_WRITE_HAND_OVER: Script<2, 3> = ["hold", "read_write", "take_write"] "first_write_hand_over";
    /// Lowers such a write hold, or takes back the notice of a writer that leaves.
    FIRST_WRITE_RELEASE: Script<2, 3> = ["hold", "read_write", "give_write", "writers"] "first_write_release";
    /// Takes several locks or raises the hold on all of them.
    MULTI_ACQUIRE: BatchScript<0, 3> = ["hold", "take", "take_all"] "multi_acquire";
    /// Passes several locks on to another holder.
    MULTI_HAND_OVER: BatchScript<0, 3> = ["hold", "take", "take_all"] "multi_hand_over";
    /// Lowers the hold on several locks, to nothing if told so.
    MULTI_RELEASE: BatchScript<0, 2> = ["hold"] "multi_release";
    /// Gives a hold another holder id.
    ADOPT: BatchScript<0, 1> = ["hold"] "adopt";
    /// Leaves word that a holder id takes nothing any more.
    WITHDRAW: Script<1, 1> = "withdraw";
    /// Keeps holds alive.
    RENEW: BatchScript<0, 1> = ["read_write"] "renew";
    /// Refuses an older fencing token.
    FENCE_ADMIT: Script<1, 1> = "fence_admit";
    /// Tells who holds a lock.
    INSPECT: Script<1, 0> = "inspect";
    /// Tells which keys may be locks.
    SCAN: Script<0, 3> = "scan";
    /// Takes a lock away from its holder.
    FORCE_RELEASE: Script<2, 3> = "force_release";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that a header documents: `KEYS[2]` is 2, and `KEYS[2..]` a list from 2 on.
    fn documented(body: &str, what: &str) -> (Vec<usize>, Option<usize>) {
        let mut single = Vec::new();
        let mut list = None;
        for line in body.lines().take_while(|line| line.starts_with("--")) {
            let Some(rest) = line.strip_prefix(&format!("-- {what}[")) else {
                continue;
            };
            let (number, _) = rest.split_once(']').unwrap();
            match number.strip_suffix("..") {
                Some(from) => list = Some(from.parse().unwrap()),
                None => single.push(number.parse().unwrap()),
            }
        }
        (single, list)
    }

    /// The largest index of `KEYS[n]` or `ARGV[n]` that the code itself uses.
    fn used(body: &str, what: &str) -> usize {
        let code = body.lines().filter(|line| !line.starts_with("--"));
        code.flat_map(|line| line.split(&format!("{what}[")).skip(1).collect::<Vec<_>>())
            .filter_map(|rest| rest.split(']').next()?.parse().ok())
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn every_header_tells_the_keys_and_arguments_that_the_type_has() {
        for (kind, name, body, keys, args) in CATALOG {
            for (what, count) in [("KEYS", *keys), ("ARGV", *args)] {
                let (single, list) = documented(body, what);
                assert_eq!(single, (1..=count).collect::<Vec<_>>(), "{name}: {what}");
                // Of a batch at least one goes on: the keys always, the arguments where each lock has some.
                let expected = (*kind == "BatchScript").then_some(count + 1);
                let may_lack = *kind == "BatchScript" && what == "ARGV";
                assert!(list == expected || may_lack && list.is_none(), "{name}: {what} list");
                assert!(used(body, what) <= count, "{name} uses a {what} that its header lacks");
            }
            assert!(body.starts_with(&format!("-- {name}: ")), "{name}: first line");
            assert!(body.contains("-- Returns  "), "{name}: Returns");
        }
    }

    #[test]
    fn every_file_of_lua_is_in_the_catalog() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/lua");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let scripts = CATALOG.iter().map(|(_, name, ..)| *name);
        let mut known: Vec<String> = scripts
            .chain(FRAGMENTS.iter().copied())
            .map(|name| format!("{name}.lua"))
            .collect();
        files.sort();
        known.sort();
        known.dedup();
        assert_eq!(files, known);
    }

    #[test]
    fn a_call_with_its_body_has_the_same_keys_and_arguments() {
        let call = REENTRANT_RELEASE.call(
            [b"lock"],
            [Value::Bytes(b"id:1"), Value::Number(0), Value::Bytes(b"ch")],
        );
        let args = |command: &redis::Cmd| -> Vec<Vec<u8>> {
            let plain = |arg| match arg {
                redis::Arg::Simple(bytes) => <[u8]>::to_vec(bytes),
                _ => panic!("a plain argument"),
            };
            command.args_iter().map(plain).collect()
        };
        let (by_hash, by_body) = (args(&call.command), args(&call.with_body()));
        assert_eq!(by_hash[2..], by_body[2..]);
        assert_eq!(
            by_hash[2..],
            [b"1".to_vec(), b"lock".into(), b"id:1".into(), b"0".into(), b"ch".into()]
        );
        assert_eq!(by_body[1], REENTRANT_RELEASE.text.body.as_bytes());
    }
}
