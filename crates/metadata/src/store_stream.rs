//! A stream to another metadata server: it sends operations one after the other, and answers come back by their
//! numbers. That is one message each way instead of a call with its headers; and what is sent first is received first.

use crate::limits::STORES_IN_FLIGHT;
use partage_wire::proto;
use partage_wire::proto::metadata_client::MetadataClient;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

type Answer = oneshot::Sender<Result<(), Status>>;

/// The sending end. When the last copy is dropped the stream ends.
#[derive(Clone, Debug)]
pub struct StoreStream(Arc<StreamInner>);

#[derive(Debug)]
struct StreamInner {
    orders: mpsc::Sender<proto::StoreOrder>,
    pending: Arc<PendingStores>,
    reader: AbortHandle,
}

/// The operations that wait for an answer.
#[derive(Debug, Default)]
struct PendingStores(Mutex<PendingState>);

#[derive(Debug, Default)]
struct PendingState {
    number: u64,
    answers: BTreeMap<u64, Answer>,
    /// Why no answer will come any more.
    broken: Option<Status>,
}

impl PendingStores {
    fn lock(&self) -> MutexGuard<'_, PendingState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, outcome: proto::StoreOutcome) {
        let answer = self.lock().answers.remove(&outcome.number);
        // A caller that has stopped waiting needs no answer.
        let _ = answer.map(|answer| match Code::from(outcome.code.cast_signed()) {
            Code::Ok => answer.send(Ok(())),
            code => answer.send(Err(Status::new(code, outcome.message))),
        });
    }

    fn fail_all(&self, why: &Status) {
        let mut state = self.lock();
        state.broken = Some(why.clone());
        for (_, answer) in std::mem::take(&mut state.answers) {
            let _ = answer.send(Err(why.clone()));
        }
    }
}

impl StoreStream {
    /// Begins one; what is stored on it meanwhile is sent when the other server has accepted the stream.
    pub fn begin(client: MetadataClient<Channel>) -> StoreStream {
        let (orders, sent) = mpsc::channel(STORES_IN_FLIGHT);
        let pending = Arc::new(PendingStores::default());
        let reader = tokio::spawn(run(client, sent, pending.clone())).abort_handle();
        StoreStream(Arc::new(StreamInner { orders, pending, reader }))
    }

    /// Whether no answer will come on it any more.
    pub fn is_broken(&self) -> bool {
        self.0.pending.lock().broken.is_some()
    }

    /// Has the other server store an operation; returns when it has, or says why not. If the stream breaks it may have.
    pub async fn store(&self, operation: proto::MapDiff) -> Result<(), Status> {
        // A permit before a number: what is numbered first is then sent first.
        let permit = self.0.orders.reserve().await.map_err(|_| ended());
        let answered = {
            let mut state = self.0.pending.lock();
            if let Some(why) = &state.broken {
                return Err(why.clone());
            }
            let permit = permit?;
            state.number += 1;
            let number = state.number;
            let (answer, answered) = oneshot::channel();
            state.answers.insert(number, answer);
            permit.send(proto::StoreOrder { number, operation: Some(operation) });
            answered
        };
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn ended() -> Status {
    Status::unavailable("the stream to the metadata server has ended")
}

async fn run(
    mut client: MetadataClient<Channel>,
    sent: mpsc::Receiver<proto::StoreOrder>,
    pending: Arc<PendingStores>,
) {
    let received = match client.store_each(ReceiverStream::new(sent)).await {
        Ok(outcomes) => receive_all(outcomes.into_inner(), &pending).await,
        Err(why) => Err(why),
    };
    pending.fail_all(&received.err().unwrap_or_else(ended));
}

async fn receive_all(
    mut outcomes: Streaming<proto::StoreOutcome>,
    pending: &PendingStores,
) -> Result<(), Status> {
    while let Some(outcome) = outcomes.message().await? {
        pending.complete(outcome);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::transport::Endpoint;

    #[tokio::test]
    async fn a_line_to_nobody_breaks_and_whoever_waits_hears_why() {
        // Nobody listens: the port was free a moment ago, and its listener is gone.
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", free.local_addr().unwrap());
        drop(free);
        let stream =
            StoreStream::begin(MetadataClient::new(Endpoint::from_shared(address).unwrap().connect_lazy()));
        let said: Vec<_> =
            futures::future::join_all((0..3).map(|_| stream.store(proto::MapDiff::default()))).await;
        assert!(
            said.iter().all(|said| matches!(said, Err(why) if why.code() == Code::Unavailable)),
            "{said:?}"
        );
        assert!(stream.is_broken());
        let later = stream.store(proto::MapDiff::default()).await.unwrap_err();
        assert_eq!(later.code(), Code::Unavailable, "at once: {later}");
    }
}
