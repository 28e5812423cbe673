//! What the observer of a client heard.

use std::sync::{Arc, Mutex};

use leasehold::{Event, EventKind, HolderId, Observer};

/// An observer that keeps every event. Clones hear the same.
#[derive(Clone, Default)]
pub struct Heard(Arc<Mutex<Vec<Event>>>);

impl Observer for Heard {
    fn event(&self, event: &Event) {
        self.0.lock().expect("never poisoned").push(event.clone());
    }
}

impl Heard {
    /// How many events of this sort there were.
    pub fn count(&self, wanted: impl Fn(&EventKind) -> bool) -> usize {
        let events = self.0.lock().expect("never poisoned");
        events.iter().filter(|event| wanted(&event.kind)).count()
    }

    /// What happened to one hold.
    pub fn of(&self, holder: &HolderId) -> Vec<Event> {
        let events = self.0.lock().expect("never poisoned");
        events.iter().filter(|event| event.holder == *holder).cloned().collect()
    }

    /// How many renewals succeeded.
    pub fn renewals(&self) -> usize {
        self.count(|kind| matches!(kind, EventKind::Renewed { .. }))
    }

    /// How many holders were told of a loss.
    pub fn losses(&self) -> usize {
        self.count(|kind| matches!(kind, EventKind::Lost { .. }))
    }
}
