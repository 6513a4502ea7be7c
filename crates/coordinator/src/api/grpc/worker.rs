//! The worker protocol over one long-lived stream; see `worker.proto` for its rules.

use crate::api::registering::Registered;
use crate::lead::decision_loop::{CallError, DecisionLoop, LoopStopped, NotStored};
use crate::lead::order_channels::OrderReceiver;
use crate::limits;
use futures::StreamExt;
use partage_core::base::id::{Incarnation, SessionDigest};
use partage_core::base::name::NodeId;
use partage_core::node::exchange::Registration;
use partage_core::node::exchange::{Beat, Orders};
use partage_door::Peer;
use partage_wire::proto::worker_server::Worker;
use partage_wire::proto::{self, FromWorker, ToWorker, from_worker, to_worker};
use partage_wire::{Malformed, Refusal, Retry};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Serves [`Worker`].
pub struct WorkerService {
    decision_loop: DecisionLoop,
}

impl WorkerService {
    /// The worker protocol of that decision loop.
    pub fn new(decision_loop: DecisionLoop) -> WorkerService {
        WorkerService { decision_loop }
    }
}

#[tonic::async_trait]
impl Worker for WorkerService {
    type AttendStream = ReceiverStream<Result<ToWorker, Status>>;

    async fn attend(
        &self,
        request: Request<Streaming<FromWorker>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let from = request.extensions().get::<Peer>().copied();
        let (out, answers) = mpsc::channel(limits::WORKER_MESSAGES);
        let decision_loop = self.decision_loop.clone();
        let (incarnation, session) = (None, SessionDigest::default());
        let stream = WorkerStream { decision_loop, out, from, incarnation, session, sent: 0 };
        tokio::spawn(stream.run(request.into_inner()));
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// Ends the stream: the worker or the decision loop is gone. The worker opens another one.
struct StreamClosed;

impl From<LoopStopped> for StreamClosed {
    fn from(_: LoopStopped) -> StreamClosed {
        StreamClosed
    }
}

struct WorkerStream {
    decision_loop: DecisionLoop,
    out: mpsc::Sender<Result<ToWorker, Status>>,
    from: Option<Peer>,
    incarnation: Option<Incarnation>,
    /// The session of the process that has registered on this stream; every message on it counts as of that process (Z1).
    session: SessionDigest,
    /// The version of the orders sent last. As the stream is in order, the worker applies them before the next answer.
    sent: u64,
}

impl WorkerStream {
    async fn run(mut self, mut from: Streaming<FromWorker>) {
        let mut receiver: Option<OrderReceiver> = None;
        loop {
            let next_orders = async {
                match &mut receiver {
                    Some(receiver) => receiver.next().await,
                    None => std::future::pending().await,
                }
            };
            let step = tokio::select! {
                message = from.next() => match message {
                    Some(Ok(message)) => self.take(message, &mut receiver).await,
                    Some(Err(_)) | None => return,
                },
                orders = next_orders => match orders {
                    Some(orders) => self.push_orders(orders).await,
                    None => return,
                },
            };
            if step.is_err() {
                return;
            }
            if let Some(receiver) = &receiver {
                receiver.sent(self.sent);
            }
        }
    }

    async fn take(
        &mut self,
        message: FromWorker,
        receiver: &mut Option<OrderReceiver>,
    ) -> Result<(), StreamClosed> {
        match message.message {
            Some(from_worker::Message::Register(form)) => match Registration::try_from(form) {
                Ok(registration) => self.register(registration, receiver).await,
                Err(malformed) => self.refuse(&Refusal::from(&malformed)).await,
            },
            Some(from_worker::Message::Beat(form)) => match Beat::try_from(form) {
                Ok(beat) => self.answer_beat(beat).await,
                Err(malformed) => self.refuse(&Refusal::from(&malformed)).await,
            },
            Some(from_worker::Message::Leave(form)) => match NodeId::new(&form.node) {
                Ok(node) => self.leave(node, Incarnation(form.incarnation)).await,
                Err(error) => self.refuse(&Refusal::from(&Malformed::new("node", error))).await,
            },
            None => {
                let unknown = "the message is none that this coordinator knows: register, beat or leave";
                self.refuse(&Refusal::new("malformed", unknown, Retry::Never)).await
            }
        }
    }

    async fn register(
        &mut self,
        registration: Registration,
        receiver: &mut Option<OrderReceiver>,
    ) -> Result<(), StreamClosed> {
        let node = registration.spec.id.clone();
        match crate::api::registering::register(&self.decision_loop, registration, self.from).await {
            Err(CallError::Stopped(gone)) => Err(gone.into()),
            Err(CallError::NotStored(why)) => self.not_stored(&why).await,
            Ok(Ok(Registered { welcome, token, session })) => {
                *receiver = Some(self.decision_loop.subscribe_orders(&node, 0));
                (self.incarnation, self.session) = (Some(welcome.incarnation), session);
                self.sent = 0;
                let token = token.map(|token| token.as_str().to_owned()).unwrap_or_default();
                let welcome = proto::Welcome { token, ..(&welcome).into() };
                self.send(to_worker::Message::Welcome(welcome)).await
            }
            Ok(Err(error)) => self.refuse(&Refusal::from(&error)).await,
        }
    }

    async fn answer_beat(&mut self, mut beat: Beat) -> Result<(), StreamClosed> {
        beat.session = self.session;
        beat.sent = self.sent;
        match self.decision_loop.beat(beat).await? {
            Ok(orders) => self.send_orders(orders).await,
            Err(error) => self.refuse(&Refusal::from(&error)).await,
        }
    }

    async fn leave(&mut self, node: NodeId, incarnation: Incarnation) -> Result<(), StreamClosed> {
        let session = self.session;
        match self
            .decision_loop
            .change(move |cluster, at| cluster.leave(at, &node, incarnation, session))
            .await
        {
            Err(CallError::Stopped(gone)) => Err(gone.into()),
            Err(CallError::NotStored(why)) => self.not_stored(&why).await,
            Ok(Ok(())) => Err(StreamClosed),
            Ok(Err(error)) => self.refuse(&Refusal::from(&error)).await,
        }
    }

    /// Sends orders that have changed since the last answer.
    async fn push_orders(&mut self, orders: Orders) -> Result<(), StreamClosed> {
        // Orders of a later process are not for this one, and those up to `sent` are not new.
        if self.incarnation != Some(orders.incarnation) || orders.version <= self.sent {
            return Ok(());
        }
        self.send_orders(orders).await
    }

    async fn send_orders(&mut self, orders: Orders) -> Result<(), StreamClosed> {
        self.sent = orders.version;
        self.send(to_worker::Message::Orders((&orders).into())).await
    }

    async fn not_stored(&self, why: &NotStored) -> Result<(), StreamClosed> {
        self.refuse(&Refusal::new("not_stored", format!("{why}: {}", why.way_out()), Retry::Later)).await
    }

    async fn refuse(&self, refusal: &Refusal) -> Result<(), StreamClosed> {
        self.send(to_worker::Message::Refused(refusal.into())).await
    }

    async fn send(&self, message: to_worker::Message) -> Result<(), StreamClosed> {
        self.out.send(Ok(ToWorker { message: Some(message) })).await.map_err(|_| StreamClosed)
    }
}
