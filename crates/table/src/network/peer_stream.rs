//! The stream to one other node: opened when something waits for it, and opened again when it ends.
//!
//! ```text
//!  idle ── a packet ──► opening ── accepted ──► sending
//!   ▲                      │ failed                │ ended
//!   └────── rested ◄── away, packets are dropped ◄─┘
//! ```
//!
//! When the address changes, the next stream is opened at once, whatever the present one does.

use crate::limits::MESSAGE_BYTES;
use crate::network::Sender;
use crate::network::counts::SendCounters;
use crate::network::peer_queue::PeerQueue;
use futures::Stream;
use futures::stream;
use hyper::rt::Executor;
use partage_clock::Clock;
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_core::node::reconnect::ReconnectBackoff;
use partage_dialer::Dialer;
use partage_wire::proto;
use partage_wire::proto::packets_client::PacketsClient;
use partage_wire::replication::{Opening, Packet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Error as TransportError;
use tonic::{Code, Status};

/// Sends what waits for one other node.
pub(super) struct PeerStream {
    pub(super) sender: Arc<Sender>,
    pub(super) node: NodeId,
    pub(super) queue: Arc<PeerQueue>,
    pub(super) counters: Arc<SendCounters>,
}

/// Runs the tasks of one connection, and ends them when it is dropped: a node that reads nothing would hold them for ever.
struct ConnectionTasks(CancellationToken);

impl Drop for ConnectionTasks {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[derive(Clone)]
struct TaskExecutor(CancellationToken);

impl Executor<Pin<Box<dyn Future<Output = ()> + Send>>> for TaskExecutor {
    fn execute(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let ended = self.0.clone();
        tokio::spawn(async move { ended.run_until_cancelled(task).await });
    }
}

impl PeerStream {
    /// Sends until the owner of the address is gone.
    pub(super) async fn run(self, mut address: watch::Receiver<String>) {
        let (clock, mut backoff) = (Clock::start(), ReconnectBackoff::of_peer());
        let mut told = None;
        loop {
            self.queue.filled().await;
            let at = address.borrow_and_update().clone();
            let failed = tokio::select! {
                failed = self.stream(&at, &mut backoff) => failed,
                changed = address.changed() => match changed {
                    Ok(()) => {
                        self.queue.end_stream();
                        continue;
                    }
                    Err(_) => return,
                },
            };
            self.queue.end_stream();
            let dropped = self.queue.set_away();
            self.counters.failed(dropped);
            self.tell(&at, &failed, &mut told);
            let delay_ms = backoff.next_delay_ms(clock.now(), 1, partage_random::jitter());
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(delay_ms)) => {}
                changed = address.changed() => match changed {
                    // What it looked for is elsewhere: the attempts before say nothing about that.
                    Ok(()) => backoff = ReconnectBackoff::of_peer(),
                    Err(_) => return,
                },
            }
            self.queue.set_present();
        }
    }

    /// Logs why a stream ended, each reason once.
    fn tell(&self, address: &str, failed: &Status, told: &mut Option<(Code, String)>) {
        let (node, why) = (&self.node, failed.message());
        let reason = Some((failed.code(), why.to_owned()));
        if *told == reason {
            return;
        }
        match failed.code() {
            Code::FailedPrecondition | Code::InvalidArgument | Code::DataLoss => {
                tracing::warn!(%node, address, why, "the node refuses packets of replicas");
            }
            _ => tracing::info!(%node, address, why, "the stream of packets to a node ended"),
        }
        *told = reason;
    }

    /// One stream, to its end.
    async fn stream(&self, address: &str, backoff: &mut ReconnectBackoff) -> Status {
        match self.try_stream(address, backoff).await {
            Ok(()) => Status::unavailable("the node has ended the stream"),
            Err(status) => status,
        }
    }

    async fn try_stream(&self, address: &str, backoff: &mut ReconnectBackoff) -> Result<(), Status> {
        let unreachable = |error: TransportError| Status::unavailable(with_source(&error));
        let endpoint = Dialer::REPLICAS.grpc(format!("http://{address}")).map_err(unreachable)?;
        let tasks = ConnectionTasks(CancellationToken::new());
        let endpoint = endpoint.executor(TaskExecutor(tasks.0.clone()));
        let channel = endpoint.connect().await.map_err(unreachable)?;
        let mut client = PacketsClient::new(channel).max_encoding_message_size(MESSAGE_BYTES);
        let accepted = client.deliver(self.batches()).await?;
        backoff.connected();
        self.counters.opened();
        let (node, sender) = (&self.node, &self.sender.node);
        tracing::debug!(%node, %sender, address, "the node accepts packets of replicas");
        let mut answers = accepted.into_inner();
        while answers.message().await?.is_some() {}
        Ok(())
    }

    /// All messages of a stream that begins now.
    fn batches(&self) -> impl Stream<Item = proto::PacketBatch> + Send + use<> {
        let incarnation = self.sender.incarnation.load(Ordering::Relaxed);
        let opening = Opening {
            from: self.sender.node.clone(),
            incarnation: (incarnation > 0).then_some(Incarnation(incarnation)),
            to: self.node.clone(),
        };
        let first = proto::PacketBatch { opening: Some((&opening).into()), packets: Vec::new() };
        let (queue, counters) = (Arc::clone(&self.queue), Arc::clone(&self.counters));
        let number = queue.begin_stream();
        stream::unfold(Some(first), move |first| {
            let (queue, counters) = (Arc::clone(&queue), Arc::clone(&counters));
            async move {
                if let Some(first) = first {
                    return Some((first, None));
                }
                let packets = queue.next(number).await?;
                counters.sent(packets.len());
                let packets = packets.into_iter().map(|packet| Packet::from(packet).into()).collect();
                Some((proto::PacketBatch { opening: None, packets }, None))
            }
        })
    }
}

/// An error of the transport says what went wrong in its source.
fn with_source(error: &TransportError) -> String {
    let mut words = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        words = format!("{words}: {error}");
        source = error.source();
    }
    words
}
