//! A line to another metadata server: operations go along it one after the other, and answers come back by their
//! numbers. One message each way instead of a call with its headers; and what is said first is heard first.

use crate::limits::LINE;
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

/// The near end. With the last copy the line ends.
#[derive(Clone, Debug)]
pub struct Line(Arc<End>);

#[derive(Debug)]
struct End {
    orders: mpsc::Sender<proto::StoreOrder>,
    desk: Arc<Desk>,
    hearing: AbortHandle,
}

/// Who waits for an answer.
#[derive(Debug, Default)]
struct Desk(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    number: u64,
    answers: BTreeMap<u64, Answer>,
    /// Why nothing will be heard any more.
    broken: Option<Status>,
}

impl Desk {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, outcome: proto::StoreOutcome) {
        let answer = self.waiting().answers.remove(&outcome.number);
        // Who has gone needs no answer.
        let _ = answer.map(|answer| match Code::from(outcome.code.cast_signed()) {
            Code::Ok => answer.send(Ok(())),
            code => answer.send(Err(Status::new(code, outcome.message))),
        });
    }

    fn break_off(&self, why: &Status) {
        let mut waiting = self.waiting();
        waiting.broken = Some(why.clone());
        for (_, answer) in std::mem::take(&mut waiting.answers) {
            let _ = answer.send(Err(why.clone()));
        }
    }
}

impl Line {
    /// Begins one; what is said on it meanwhile is sent when the other end has taken up.
    pub fn begin(client: MetadataClient<Channel>) -> Line {
        let (orders, sent) = mpsc::channel(LINE);
        let desk = Arc::new(Desk::default());
        let hearing = tokio::spawn(hear(client, sent, desk.clone())).abort_handle();
        Line(Arc::new(End { orders, desk, hearing }))
    }

    /// Whether nothing will be heard on it any more.
    pub fn is_broken(&self) -> bool {
        self.0.desk.waiting().broken.is_some()
    }

    /// Has the other end store an operation; returns when it has, or says why not. When the line breaks it may have.
    pub async fn store(&self, operation: proto::MapDiff) -> Result<(), Status> {
        // A place before a number: what is said first is then sent first.
        let place = self.0.orders.reserve().await.map_err(|_| ended());
        let answered = {
            let mut waiting = self.0.desk.waiting();
            if let Some(why) = &waiting.broken {
                return Err(why.clone());
            }
            let place = place?;
            waiting.number += 1;
            let number = waiting.number;
            let (answer, answered) = oneshot::channel();
            waiting.answers.insert(number, answer);
            place.send(proto::StoreOrder { number, operation: Some(operation) });
            answered
        };
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.hearing.abort();
    }
}

fn ended() -> Status {
    Status::unavailable("the line to the metadata server has ended")
}

async fn hear(mut client: MetadataClient<Channel>, sent: mpsc::Receiver<proto::StoreOrder>, desk: Arc<Desk>) {
    let heard = match client.store_each(ReceiverStream::new(sent)).await {
        Ok(outcomes) => until_broken(outcomes.into_inner(), &desk).await,
        Err(why) => Err(why),
    };
    desk.break_off(&heard.err().unwrap_or_else(ended));
}

async fn until_broken(mut outcomes: Streaming<proto::StoreOutcome>, desk: &Desk) -> Result<(), Status> {
    while let Some(outcome) = outcomes.message().await? {
        desk.hear(outcome);
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
        let line = Line::begin(MetadataClient::new(Endpoint::from_shared(address).unwrap().connect_lazy()));
        let said: Vec<_> =
            futures::future::join_all((0..3).map(|_| line.store(proto::MapDiff::default()))).await;
        assert!(
            said.iter().all(|said| matches!(said, Err(why) if why.code() == Code::Unavailable)),
            "{said:?}"
        );
        assert!(line.is_broken());
        let later = line.store(proto::MapDiff::default()).await.unwrap_err();
        assert_eq!(later.code(), Code::Unavailable, "at once: {later}");
    }
}
