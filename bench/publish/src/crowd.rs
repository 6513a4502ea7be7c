//! Subscribers: each follows the maps over a stream of its own and notes when a change has come.

use bench_gauge::now;
use partage_core::base::name::KeyspaceName;
use partage_wire::map::Watch;
use partage_wire::proto::WatchRequest;
use partage_wire::proto::maps_client::MapsClient;
use prost::Message;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

/// Bytes of framing of one gRPC message.
const FRAME: usize = 5;

/// Subscribers to the map of one keyspace, each with a stream of its own.
pub struct Crowd {
    arrivals: tokio::sync::Mutex<mpsc::Receiver<Instant>>,
    bytes: Arc<AtomicU64>,
    subscribers: u64,
}

impl Crowd {
    /// Connects and waits until every subscriber has the whole map.
    pub async fn gather(
        coordinator: SocketAddr,
        keyspace: &str,
        subscribers: u64,
        connections: u64,
    ) -> Result<Crowd, String> {
        let keyspace = KeyspaceName::new(keyspace).map_err(|error| error.to_string())?;
        let watch: WatchRequest = (&Watch { keyspaces: [keyspace].into(), ..Watch::default() }).into();
        let (arrived, arrivals) = mpsc::channel(2 * subscribers as usize);
        let bytes = Arc::new(AtomicU64::new(0));
        let crowd = Crowd { arrivals: tokio::sync::Mutex::new(arrivals), bytes, subscribers };
        for _ in 0..connections {
            let endpoint = Endpoint::from_shared(format!("http://{coordinator}"));
            let channel = endpoint.map_err(|error| error.to_string())?.connect().await;
            let channel = channel.map_err(|error| error.to_string())?;
            for _ in 0..subscribers / connections {
                tokio::spawn(follow(channel.clone(), watch.clone(), arrived.clone(), crowd.bytes.clone()));
            }
        }
        crowd.next_change(Duration::from_secs(300)).await?;
        Ok(crowd)
    }

    /// Bytes of all messages so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// When each subscriber had the next change.
    pub async fn next_change(&self, within: Duration) -> Result<Vec<Instant>, String> {
        let mut arrivals = self.arrivals.lock().await;
        let mut moments = Vec::new();
        while (moments.len() as u64) < self.subscribers {
            match timeout(within, arrivals.recv()).await {
                Ok(Some(moment)) => moments.push(moment),
                Ok(None) | Err(_) => {
                    return Err(format!(
                        "only {} of {} subscribers had the change within {within:?}",
                        moments.len(),
                        self.subscribers
                    ));
                }
            }
        }
        Ok(moments)
    }
}

async fn follow(
    channel: Channel,
    watch: WatchRequest,
    arrived: mpsc::Sender<Instant>,
    bytes: Arc<AtomicU64>,
) {
    let mut client = MapsClient::new(channel).max_decoding_message_size(64 << 20);
    let Ok(events) = client.watch(watch).await else { return };
    let mut events = events.into_inner();
    while let Ok(Some(event)) = events.message().await {
        let moment = now();
        bytes.fetch_add((event.encoded_len() + FRAME) as u64, Ordering::Relaxed);
        // The last part of a map, or a change that is one part.
        let complete = event.diff.is_some() && !event.more;
        if complete && arrived.send(moment).await.is_err() {
            return;
        }
    }
}
