//! What is published on a server while a test runs.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use leasehold_bench::servers::RedisServer;

use crate::eventually;

/// Hears every message published on a server, whether or not anybody else does.
pub struct Messages {
    heard: Arc<Mutex<Vec<(String, String)>>>,
    client: redis::Client,
}

impl Messages {
    /// Listens from now on.
    pub fn listen(server: &RedisServer) -> Self {
        let client = redis::Client::open(server.url()).expect("the harness gives valid URLs");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (mut connection, ears) = (client.get_connection().expect("a server of our own"), heard.clone());
        let (ready, subscribed) = std::sync::mpsc::channel();
        // Ends with the server.
        thread::spawn(move || {
            let mut pubsub = connection.as_pubsub();
            pubsub.psubscribe("*").expect("a server of our own");
            let _ = ready.send(());
            while let Ok(message) = pubsub.get_message() {
                let payload: Vec<u8> = message.get_payload().unwrap_or_default();
                let payload = String::from_utf8_lossy(&payload).into_owned();
                ears.lock()
                    .expect("never poisoned")
                    .push((message.get_channel_name().to_owned(), payload));
            }
        });
        subscribed.recv().expect("the listener subscribes");
        Messages { heard, client }
    }

    /// All that was published so far. A marker of its own shows that nothing is still on its way.
    pub fn so_far(&self) -> Vec<(String, String)> {
        let marker = ("end-of-test".to_owned(), fastrand::u64(..).to_string());
        let mut connection = self.client.get_connection().expect("a server of our own");
        let _: i64 = redis::cmd("PUBLISH")
            .arg(&marker.0)
            .arg(&marker.1)
            .query(&mut connection)
            .expect("a server of our own");
        eventually(Duration::from_secs(20), || self.list().contains(&marker));
        self.list()
            .into_iter()
            .filter(|(channel, _)| *channel != marker.0)
            .collect()
    }

    fn list(&self) -> Vec<(String, String)> {
        self.heard.lock().expect("never poisoned").clone()
    }
}
