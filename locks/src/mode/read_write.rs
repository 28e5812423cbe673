//! The two halves of a read-write lock: many readers or one writer, on one hash.
//!
//! Each read hold has keys of its own beside the hash, one a count, which live as long as that hold: a reader that dies is told
//! by its keys from one that lives.

use std::sync::Arc;
use std::time::Duration;

use crate::keys::{Channel, LockName, hold_key, hold_stem, read_write_channel, waiting_writers, writer_field};
use crate::kind::LockKind;
use crate::mode::{Ask, Mode, Part, Renewable, Wake};
use crate::options::lease_millis;
use crate::owner::HolderId;
use crate::script::{
    Call, FIRST_WRITE_ACQUIRE, FIRST_WRITE_HAND_OVER, FIRST_WRITE_RELEASE, READ_ACQUIRE, READ_RELEASE, Value,
    WRITE_ACQUIRE, WRITE_HAND_OVER, WRITE_RELEASE, YIELDING_READ_ACQUIRE,
};

/// The keys of the read half.
#[derive(Clone, Debug)]
pub struct Read {
    name: LockName,
    stem: Vec<u8>,
    channel: Channel,
    /// Where writers give notice, if they come first.
    writers: Option<Vec<u8>>,
}

/// The keys of the write half.
#[derive(Clone, Debug)]
pub struct Write {
    name: LockName,
    channel: Channel,
    /// Where it gives notice, if writers come first.
    writers: Option<Vec<u8>>,
}

impl Read {
    pub(crate) fn new(name: LockName, writers_first: bool) -> Self {
        Read {
            stem: hold_stem(&name),
            channel: read_write_channel(&name),
            writers: writers_first.then(|| waiting_writers(&name)),
            name,
        }
    }
}

impl Write {
    pub(crate) fn new(name: LockName, writers_first: bool) -> Self {
        Write {
            channel: read_write_channel(&name),
            writers: writers_first.then(|| waiting_writers(&name)),
            name,
        }
    }
}

impl Mode for Read {
    fn kind(&self) -> LockKind {
        LockKind::ReadWrite
    }

    fn part(&self) -> Part {
        Part::Read
    }

    fn name(&self) -> &LockName {
        &self.name
    }

    fn acquire(&self, ask: &Ask<'_>) -> Call {
        let writer = ask.beside.map(writer_field).unwrap_or_default();
        let (lock, hold_key) = (self.name.key(), hold_key(&self.stem, ask.holder, ask.count));
        let args = [
            Value::Bytes(ask.holder.as_bytes()),
            Value::Number(ask.count.into()),
            Value::Number(lease_millis(ask.lease)),
            Value::Bytes(&writer),
        ];
        match &self.writers {
            Some(writers) => YIELDING_READ_ACQUIRE.call([lock, &hold_key, writers], args),
            None => READ_ACQUIRE.call([lock, &hold_key], args),
        }
    }

    fn release(&self, holder: &HolderId, count: u32) -> Call {
        READ_RELEASE.call(
            [self.name.key(), &self.stem],
            [
                Value::Bytes(holder.as_bytes()),
                Value::Number(count.into()),
                Value::Bytes(self.channel.as_bytes()),
            ],
        )
    }

    fn wake(&self, _holder: &HolderId, _busy: usize) -> Wake {
        Wake::Channel(self.channel.clone())
    }

    fn renewal(&self, holder: &HolderId, count: u32) -> Vec<Renewable> {
        vec![Renewable {
            hold_keys: (1..=count).map(|n| hold_key(&self.stem, holder, n)).collect(),
            ..Renewable::hash(&self.name, holder.as_bytes().to_vec())
        }]
    }

    /// Readers let each other in, so none needs to wait for the one in front.
    fn queues_locally(&self) -> bool {
        false
    }

    /// A writer may read what it writes.
    fn stands_beside(&self) -> Option<Part> {
        Some(Part::Write)
    }
}

impl Mode for Write {
    fn kind(&self) -> LockKind {
        LockKind::ReadWrite
    }

    fn part(&self) -> Part {
        Part::Write
    }

    fn name(&self) -> &LockName {
        &self.name
    }

    fn acquire(&self, ask: &Ask<'_>) -> Call {
        let field = writer_field(ask.holder);
        let args = [
            Value::Bytes(&field),
            Value::Number(ask.count.into()),
            Value::Number(lease_millis(ask.lease)),
        ];
        let Some(writers) = &self.writers else {
            return WRITE_ACQUIRE.call([self.name.key()], args);
        };
        let notice = if ask.may_queue { NOTICE } else { Duration::ZERO };
        let [field, count, lease] = args;
        let args = [field, count, lease, Value::Number(lease_millis(notice))];
        FIRST_WRITE_ACQUIRE.call([self.name.key(), writers], args)
    }

    fn release(&self, holder: &HolderId, count: u32) -> Call {
        let field = writer_field(holder);
        let args = [
            Value::Bytes(&field),
            Value::Number(count.into()),
            Value::Bytes(self.channel.as_bytes()),
        ];
        match &self.writers {
            Some(writers) => FIRST_WRITE_RELEASE.call([self.name.key(), writers], args),
            None => WRITE_RELEASE.call([self.name.key()], args),
        }
    }

    fn hand_over(&self, from: &HolderId, to: &HolderId, lease: Duration) -> Option<Call> {
        let (from, to) = (writer_field(from), writer_field(to));
        let args = [
            Value::Bytes(&from),
            Value::Bytes(&to),
            Value::Number(lease_millis(lease)),
        ];
        Some(match &self.writers {
            Some(writers) => FIRST_WRITE_HAND_OVER.call([self.name.key(), writers], args),
            None => WRITE_HAND_OVER.call([self.name.key()], args),
        })
    }

    fn wake(&self, _holder: &HolderId, _busy: usize) -> Wake {
        Wake::Channel(self.channel.clone())
    }

    fn renewal(&self, holder: &HolderId, _count: u32) -> Vec<Renewable> {
        vec![Renewable::hash(&self.name, writer_field(holder))]
    }

    fn downgraded(&self) -> Option<Arc<dyn Mode>> {
        Some(Arc::new(Read::new(self.name.clone(), self.writers.is_some())))
    }

    fn gives_notice(&self) -> bool {
        self.writers.is_some()
    }

    /// A reader that asks for the write lock would wait for itself.
    fn waits_for(&self) -> Option<Part> {
        Some(Part::Read)
    }
}

/// How long readers let a writer come first that does not ask again; it asks after a third of it.
const NOTICE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::HolderIds;

    #[test]
    fn a_read_hold_has_a_key_of_its_own_for_each_count() {
        let lock = Read::new("n".into(), false);
        let ids = HolderIds::new();
        let (holder, writer) = (ids.next(), ids.next());
        let ask = Ask {
            holder: &holder,
            count: 2,
            lease: Duration::from_secs(1),
            beside: Some(&writer),
            may_queue: false,
        };
        let key = format!("{{n}}:{holder}:rwlock_timeout:2");
        let field = format!("{writer}:write");
        assert_eq!(
            lock.acquire(&ask).words(),
            ["2", "n", &key, &holder.to_string(), "2", "1000", &field]
        );
        assert_eq!(
            lock.release(&holder, 0).words(),
            ["2", "n", "{n}", &holder.to_string(), "0", "redisson_rwlock:{n}"]
        );
        let keys = lock.renewal(&holder, 2).remove(0).hold_keys;
        assert_eq!((keys.len(), keys[1].as_slice()), (2, key.as_bytes()));
    }

    #[test]
    fn the_writer_has_a_field_of_its_own() {
        let lock = Write::new("a{b}".into(), false);
        let holder = HolderIds::new().next();
        let field = format!("{holder}:write");
        assert_eq!(
            lock.release(&holder, 1).words(),
            ["1", "a{b}", &field, "1", "redisson_rwlock:a{b}"]
        );
        assert_eq!(lock.renewal(&holder, 1)[0].field, field.as_bytes());
    }
}
