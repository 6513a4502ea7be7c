//! The worker protocol over one long-lived stream; see `worker.proto` for its rules.

use crate::limits;
use crate::mind::{Gone, Mind, NotStored, Unanswered};
use crate::registering::Registered;
use crate::trays::Tray;
use futures::StreamExt;
use partage_core::cluster::Registration;
use partage_core::exchange::{Beat, Orders};
use partage_core::id::{Incarnation, SessionDigest};
use partage_core::name::NodeId;
use partage_door::Peer;
use partage_wire::proto::worker_server::Worker;
use partage_wire::proto::{self, FromWorker, ToWorker, from_worker, to_worker};
use partage_wire::{Malformed, Refusal, Retry};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Serves [`Worker`].
pub struct WorkerDoor {
    mind: Mind,
}

impl WorkerDoor {
    /// In front of that mind.
    pub fn new(mind: Mind) -> WorkerDoor {
        WorkerDoor { mind }
    }
}

#[tonic::async_trait]
impl Worker for WorkerDoor {
    type AttendStream = ReceiverStream<Result<ToWorker, Status>>;

    async fn attend(
        &self,
        request: Request<Streaming<FromWorker>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let from = request.extensions().get::<Peer>().copied();
        let (out, answers) = mpsc::channel(limits::WORKER_MESSAGES);
        let mind = self.mind.clone();
        let (incarnation, session) = (None, SessionDigest::default());
        let session = Session { mind, out, from, incarnation, session, sent: 0 };
        tokio::spawn(session.run(request.into_inner()));
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// Ends the stream: the worker or the mind is gone. The worker opens another one.
struct Over;

impl From<Gone> for Over {
    fn from(_: Gone) -> Over {
        Over
    }
}

struct Session {
    mind: Mind,
    out: mpsc::Sender<Result<ToWorker, Status>>,
    from: Option<Peer>,
    incarnation: Option<Incarnation>,
    /// Of the process that has registered on this stream: what comes on it speaks for that one, and for no other (Z1).
    session: SessionDigest,
    /// The version of the orders sent last. The stream is in order, so it counts as taken in.
    sent: u64,
}

impl Session {
    async fn run(mut self, mut from: Streaming<FromWorker>) {
        let mut tray: Option<Tray> = None;
        loop {
            let laid = async {
                match &mut tray {
                    Some(tray) => tray.next().await,
                    None => std::future::pending().await,
                }
            };
            let step = tokio::select! {
                message = from.next() => match message {
                    Some(Ok(message)) => self.take(message, &mut tray).await,
                    Some(Err(_)) | None => return,
                },
                orders = laid => match orders {
                    Some(orders) => self.push(orders).await,
                    None => return,
                },
            };
            if step.is_err() {
                return;
            }
            if let Some(tray) = &tray {
                tray.sent(self.sent);
            }
        }
    }

    async fn take(&mut self, message: FromWorker, tray: &mut Option<Tray>) -> Result<(), Over> {
        match message.message {
            Some(from_worker::Message::Register(form)) => match Registration::try_from(form) {
                Ok(registration) => self.register(registration, tray).await,
                Err(malformed) => self.refuse(&Refusal::from(&malformed)).await,
            },
            Some(from_worker::Message::Beat(form)) => match Beat::try_from(form) {
                Ok(beat) => self.beat(beat).await,
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

    async fn register(&mut self, registration: Registration, tray: &mut Option<Tray>) -> Result<(), Over> {
        let node = registration.spec.id.clone();
        match crate::registering::register(&self.mind, registration, self.from).await {
            Err(Unanswered::Gone(gone)) => Err(gone.into()),
            Err(Unanswered::NotStored(why)) => self.not_stored(&why).await,
            Ok(Ok(Registered { welcome, token, session })) => {
                *tray = Some(self.mind.tray(&node, 0));
                (self.incarnation, self.session) = (Some(welcome.incarnation), session);
                self.sent = 0;
                let token = token.map(|token| token.as_str().to_owned()).unwrap_or_default();
                let welcome = proto::Welcome { token, ..(&welcome).into() };
                self.send(to_worker::Message::Welcome(welcome)).await
            }
            Ok(Err(error)) => self.refuse(&Refusal::from(&error)).await,
        }
    }

    async fn beat(&mut self, mut beat: Beat) -> Result<(), Over> {
        beat.session = self.session;
        beat.applied = beat.applied.max(self.sent);
        match self.mind.beat(beat).await? {
            Ok(orders) => self.orders(orders).await,
            Err(error) => self.refuse(&Refusal::from(&error)).await,
        }
    }

    async fn leave(&mut self, node: NodeId, incarnation: Incarnation) -> Result<(), Over> {
        let session = self.session;
        match self.mind.change(move |cluster, at| cluster.leave(at, &node, incarnation, session)).await {
            Err(Unanswered::Gone(gone)) => Err(gone.into()),
            Err(Unanswered::NotStored(why)) => self.not_stored(&why).await,
            Ok(Ok(())) => Err(Over),
            Ok(Err(error)) => self.refuse(&Refusal::from(&error)).await,
        }
    }

    /// Orders that nobody asked for, because they have changed.
    async fn push(&mut self, orders: Orders) -> Result<(), Over> {
        // A later process of that name has registered: this one hears so when it beats. And what was laid down
        // before the last answer to a beat says nothing new.
        if self.incarnation != Some(orders.incarnation) || orders.version <= self.sent {
            return Ok(());
        }
        self.orders(orders).await
    }

    async fn orders(&mut self, orders: Orders) -> Result<(), Over> {
        self.sent = orders.version;
        self.send(to_worker::Message::Orders((&orders).into())).await
    }

    async fn not_stored(&self, why: &NotStored) -> Result<(), Over> {
        self.refuse(&Refusal::new("not_stored", format!("{why}: {}", why.way_out()), Retry::Later)).await
    }

    async fn refuse(&self, refusal: &Refusal) -> Result<(), Over> {
        self.send(to_worker::Message::Refused(refusal.into())).await
    }

    async fn send(&self, message: to_worker::Message) -> Result<(), Over> {
        self.out.send(Ok(ToWorker { message: Some(message) })).await.map_err(|_| Over)
    }
}
