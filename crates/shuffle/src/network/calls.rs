//! What is asked of leaders and holders for a client on the network, and what the client is answered.

use super::attempt::refusal;
use crate::limits::{
    ANSWERS, NEAR_BYTES, NEAR_RANGES, NUMBER_DRAWS, NUMBERS_TOLD, READ_BYTES, REQUEST_REST_MS,
};
use crate::node::client::{ClientError, PutError, ReadError, Step, Steps, Wanted};
use crate::node::inbox::{Closed, Event, ReadAnswer};
use crate::node::shared::Shared;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_core::limits::{SHUFFLE_RANGES, SHUFFLE_TTL_LEAST_MS, SHUFFLE_WEIGHT};
use partage_service::shuffle::holder::{NotRead, Slice};
use partage_service::shuffle::leader::{self, ShuffleOverview};
use partage_service::shuffle::message::Word;
use partage_service::shuffle::ordered_records::OrderedRecords;
use partage_service::shuffle::plan::Plan;
use partage_service::shuffle::seek::{Found, SeekFor};
use partage_service::shuffle::{ShuffleId, Terms};
use partage_shuffle_wire::client::{Again, Answer, Call, Refusal, RefusalWord, Request, Stage, Status};
use partage_shuffle_wire::transport::{Answers, Closed as ConnectionClosed};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Asks for a client. A copy asks for the same one.
#[derive(Debug, Clone)]
pub(crate) struct Asks {
    pub(super) shared: Arc<Shared>,
    own: NodeId,
}

/// What a leader answers, or why it does not.
type LedAnswer = Result<leader::Answer, leader::Failed>;

/// Why a call has no more answers: the client is gone, or is refused.
enum Ends {
    Gone(ConnectionClosed),
    Refused(Refusal),
}

impl From<ConnectionClosed> for Ends {
    fn from(closed: ConnectionClosed) -> Ends {
        Ends::Gone(closed)
    }
}

impl From<Refusal> for Ends {
    fn from(refusal: Refusal) -> Ends {
        Ends::Refused(refusal)
    }
}

/// Where the answers of one call go.
enum Replies<'a> {
    /// To a client on the network.
    Client { number: u64, shuffle: ShuffleId, to: &'a Answers },
    /// To a task of this process.
    Task(&'a mpsc::Sender<Answer>),
}

impl Replies<'_> {
    async fn send(&self, what: Answer) -> Result<(), ConnectionClosed> {
        match self {
            Replies::Client { number, shuffle, to } => {
                to.send(&Call { number: *number, shuffle: *shuffle, what }).await
            }
            Replies::Task(to) => to.send(what).await.map_err(|_| ConnectionClosed::Ended),
        }
    }

    /// Sends records, in as many answers as they need. Says how many there were, and their bytes.
    async fn send_records(&self, records: &OrderedRecords) -> Result<(u64, u64), ConnectionClosed> {
        for piece in records.pieces(READ_BYTES) {
            self.send(Answer::Read(piece)).await?;
        }
        Ok(records.sizes())
    }
}

fn stopped(_: Closed) -> Refusal {
    refusal(PutError::Stopped)
}

/// Refuses terms that would take more memory than a node has, or have no weight: of a start, which each later leader would go by,
/// and of an attempt, whose client has them from a handle that somebody may have mistyped.
pub(super) fn check_terms(terms: Terms) -> Result<(), Refusal> {
    if terms.are_within_limits() {
        return Ok(());
    }
    let (Terms { stashes, ranges, weight, .. }, most, heaviest) = (terms, SHUFFLE_RANGES, SHUFFLE_WEIGHT);
    let why = format!(
        "a shuffle of {stashes} stashes, {ranges} ranges and weight {weight} cannot be: {most} of each are the most, and the weight is from 1 to {heaviest}"
    );
    Err(Refusal::new(RefusalWord::BadFrame, Again::No, why))
}

fn no_partition(i: u64, n: u64) -> Refusal {
    let why =
        format!("there is no partition {i} of {n}: they are numbered from 0, and there is one at least");
    Refusal::new(RefusalWord::NoSuchPartition, Again::No, why)
}

impl Asks {
    pub(crate) fn new(shared: Arc<Shared>, own: NodeId) -> Asks {
        Asks { shared, own }
    }

    /// Answers a call that is not about an attempt.
    pub(super) async fn answer(
        &self,
        call: Call<Request>,
        answers: &Answers,
    ) -> Result<(), ConnectionClosed> {
        let replies = Replies::Client { number: call.number, shuffle: call.shuffle, to: answers };
        match self.answered(call.shuffle, call.what, &replies).await {
            Ok(()) => Ok(()),
            Err(Ends::Refused(refusal)) => {
                self.shared.counters.refused(refusal.word.as_str());
                replies.send(Answer::Refused(refusal)).await
            }
            Err(Ends::Gone(closed)) => Err(closed),
        }
    }

    /// The same for a task of this process: the answers come to it one by one, as it takes them. One that is gone needs none.
    pub(super) async fn answer_task(
        &self,
        shuffle: ShuffleId,
        what: Request,
        answers: &mpsc::Sender<Answer>,
    ) -> Result<(), Refusal> {
        match self.answered(shuffle, what, &Replies::Task(answers)).await {
            Ok(()) | Err(Ends::Gone(_)) => Ok(()),
            Err(Ends::Refused(refusal)) => {
                self.shared.counters.refused(refusal.word.as_str());
                Err(refusal)
            }
        }
    }

    async fn answered(&self, shuffle: ShuffleId, what: Request, replies: &Replies<'_>) -> Result<(), Ends> {
        let answer = match what {
            Request::Start(terms, options) => {
                check_terms(terms)?;
                options.check().map_err(Refusal::from)?;
                options.check_combine(terms.combine).map_err(Refusal::from)?;
                match self.request(shuffle, &leader::Request::Start(terms, options)).await? {
                    leader::Answer::Started(terms) => Answer::Started(terms, self.numbers(NUMBERS_TOLD)),
                    _ => return Err(unexpected().into()),
                }
            }
            Request::Seal(expected) => match self.request(shuffle, &leader::Request::Seal(expected)).await? {
                leader::Answer::Sealed(plan) => Answer::Sealed(plan.records(), bytes_of(&plan)),
                leader::Answer::Lacks(partitions) => Answer::Lacks(partitions),
                _ => return Err(unexpected().into()),
            },
            Request::Bounds(n, by) => {
                let bounds = async { Ok(self.bounds(&self.plan(shuffle).await?, n, by).await?) };
                Answer::Bounds(self.in_use(shuffle, bounds).await?)
            }
            Request::HeavyKeys(n) => {
                let heavy = async {
                    let plan = self.plan(shuffle).await?;
                    Ok(Answer::HeavyKeys(plan.records(), self.heavy_keys(&plan, n).await?))
                };
                self.in_use(shuffle, heavy).await?
            }
            Request::Status => Answer::Status(status(&self.overview(shuffle).await?)),
            Request::KeepAlive => {
                self.request(shuffle, &leader::Request::KeepAlive).await?;
                Answer::Alive
            }
            Request::Delete => {
                self.request(shuffle, &leader::Request::Delete).await?;
                Answer::Deleted
            }
            Request::ReadPartition(..)
            | Request::ReadPartitionNear(..)
            | Request::ReadRanks(..)
            | Request::ReadKeys(..)
            | Request::ReadSlice(..) => {
                return self.in_use(shuffle, self.read(shuffle, what, replies)).await;
            }
            // They belong to attempts, which the session has.
            Request::Open(..) | Request::Records(..) | Request::End(..) | Request::Abort => return Ok(()),
        };
        Ok(replies.send(answer).await?)
    }

    /// So many numbers of which this node would lead the shuffles, by its map: a start under one of them waits for no other
    /// leader. Fewer in a pool of many nodes, where most numbers that are drawn belong to others.
    pub(super) fn numbers(&self, most: usize) -> Vec<ShuffleId> {
        let map = self.shared.map();
        let drawn = (0..NUMBER_DRAWS).map(|_| ShuffleId(u128::from_be_bytes(partage_random::bytes())));
        let led = drawn.filter(|number| map.live(map.home(*number)).first() == Some(&self.own));
        led.take(most).collect()
    }

    /// Reads, and tells the leader meanwhile that the shuffle is in use: it would not hear of what holders are asked.
    async fn in_use<T>(
        &self,
        shuffle: ShuffleId,
        reads: impl Future<Output = Result<T, Ends>>,
    ) -> Result<T, Ends> {
        tokio::select! {
            biased;
            refusal = self.say_in_use(shuffle) => Err(refusal.into()),
            read = reads => read,
        }
    }

    /// Ends only with the node. Nobody waits for the answers.
    async fn say_in_use(&self, shuffle: ShuffleId) -> Refusal {
        loop {
            let (sender, _) = mpsc::channel::<LedAnswer>(1);
            let event = Event::Request(shuffle, leader::Request::KeepAlive, sender.into());
            if let Err(closed) = self.shared.inbox.push_when_room(event).await {
                return stopped(closed);
            }
            sleep(Duration::from_millis(SHUFFLE_TTL_LEAST_MS / 3)).await;
        }
    }

    async fn read(&self, shuffle: ShuffleId, what: Request, replies: &Replies<'_>) -> Result<(), Ends> {
        let (records, bytes) = match what {
            Request::ReadPartition(i, n, _) | Request::ReadPartitionNear(i, n, _) if i >= n => {
                return Err(no_partition(i, n).into());
            }
            Request::ReadPartition(i, n, by) => {
                self.read_all(&self.plan(shuffle).await?, Wanted::Partition(i, n, by), replies).await?
            }
            Request::ReadPartitionNear(i, n, by) => {
                let plan = self.plan(shuffle).await?;
                if let Some(node) = self.nearer(&plan, (i, n)) {
                    return Ok(replies.send(Answer::ReadAt(node)).await?);
                }
                self.read_all(&plan, Wanted::Partition(i, n, by), replies).await?
            }
            Request::ReadRanks(from, to) => {
                self.read_all(&self.plan(shuffle).await?, Wanted::Ranks(from, to), replies).await?
            }
            Request::ReadKeys(first, end) => {
                self.read_all(&self.plan(shuffle).await?, Wanted::Keys(first, end), replies).await?
            }
            Request::ReadSlice(range, keys, from, to) => {
                let plan = self.plan(shuffle).await?;
                let range = usize::try_from(range).unwrap_or(usize::MAX);
                self.read_slice(Slice { plan, range, keys, from, to }, replies).await?
            }
            _ => return Ok(()),
        };
        Ok(replies.send(Answer::ReadEnd(records, bytes)).await?)
    }

    /// The node that has partition `i` of `n`, if it is another one, and the partition is worth another question: here each
    /// record of it would be received and sent once more.
    fn nearer(&self, plan: &Plan, (i, n): (u64, u64)) -> Option<NodeId> {
        // Of a partition of several ranges each node has some.
        let is_large = n.saturating_mul(NEAR_RANGES) < plan.ranges.len() as u64;
        if is_large || bytes_of(plan) / n.max(1) < NEAR_BYTES {
            return None;
        }
        let map = self.shared.map();
        let first = plan.holders_of_partitions(&map, n)(i).into_iter().next();
        first.filter(|node| *node != self.own)
    }

    async fn read_all(
        &self,
        plan: &Arc<Plan>,
        wanted: Wanted,
        replies: &Replies<'_>,
    ) -> Result<(u64, u64), Ends> {
        let (sender, mut come) = mpsc::channel::<ReadAnswer>(ANSWERS);
        let mut steps = Steps::new(Arc::clone(&self.shared), plan, wanted, sender.into());
        let mut sum = (0, 0);
        while let Some(records) = next_piece(&mut steps, &mut come).await? {
            let (count, bytes) = replies.send_records(&records).await?;
            sum = (sum.0 + count, sum.1 + bytes);
        }
        Ok(sum)
    }

    /// Of this node alone: who asks for a slice goes to another holder by itself.
    async fn read_slice(&self, slice: Slice, replies: &Replies<'_>) -> Result<(u64, u64), Ends> {
        let settings = &self.shared.settings;
        let (most, end) = (settings.machines.read_records, slice.to);
        let (mut from, mut sum, mut begun) = (slice.from, (0, 0), self.now());
        while from < end {
            let to = end.min(from.saturating_add(most));
            let part = Slice { from, to, ..slice.clone() };
            let (sender, mut come) = mpsc::channel::<ReadAnswer>(1);
            let question = Event::Read(self.own.clone(), part, from, sender.into());
            self.shared.inbox.push_when_room(question).await.map_err(stopped)?;
            let answer = timeout(Duration::from_millis(settings.question_ms), come.recv()).await;
            let Some(ReadAnswer::Answer(_, records)) = answer.ok().flatten() else {
                return Err(Refusal::from(NotRead::Busy).into());
            };
            let records = match records {
                // It is here soon.
                Err(NotRead::Sorts) if self.now().since(begun) >= settings.request_ms => {
                    return Err(Refusal::from(NotRead::Sorts).into());
                }
                Err(NotRead::Sorts) => {
                    self.rest(begun).await?;
                    continue;
                }
                records => records.map_err(Refusal::from)?,
            };
            let (count, bytes) = replies.send_records(&records).await?;
            sum = (sum.0 + count, sum.1 + bytes);
            (from, begun) = (from + count, self.now());
            // An answer may be short: only one without records is the last.
            if count == 0 {
                break;
            }
        }
        Ok(sum)
    }

    /// How a shuffle is, as its leader knows it.
    pub(crate) async fn overview(&self, shuffle: ShuffleId) -> Result<ShuffleOverview, Refusal> {
        match self.request(shuffle, &leader::Request::Overview).await? {
            leader::Answer::Overview(overview) => Ok(overview),
            _ => Err(unexpected()),
        }
    }

    async fn request(
        &self,
        shuffle: ShuffleId,
        request: &leader::Request,
    ) -> Result<leader::Answer, Refusal> {
        let begun = self.now();
        loop {
            let (sender, mut answer) = mpsc::channel::<LedAnswer>(1);
            let event = Event::Request(shuffle, request.clone(), sender.into());
            self.shared.inbox.push_when_room(event).await.map_err(stopped)?;
            match timeout(self.patience(), answer.recv()).await {
                Ok(Some(Ok(answer))) => return Ok(answer),
                Ok(Some(Err(leader::Failed::NotLeading)) | None) | Err(_) => self.rest(begun).await?,
                Ok(Some(Err(failed))) => return Err(failed.into()),
            }
        }
    }

    /// What a sealed shuffle is read by.
    pub(crate) async fn plan(&self, shuffle: ShuffleId) -> Result<Arc<Plan>, Refusal> {
        let begun = self.now();
        loop {
            let (sender, mut word) = mpsc::channel::<Word>(1);
            let event = Event::Status(shuffle, sender.into());
            self.shared.inbox.push_when_room(event).await.map_err(stopped)?;
            match timeout(self.patience(), word.recv()).await {
                Ok(Some(Word::Sealed(plan))) => return Ok(plan),
                Ok(Some(Word::Open(..))) => {
                    let why = ClientError::NotSealed;
                    return Err(Refusal::new(RefusalWord::NotSealed, Again::Request, why));
                }
                Ok(Some(Word::Failed(failure))) => return Err(failure.into()),
                Ok(Some(Word::Ended(how))) => return Err(how.into()),
                Ok(None) | Err(_) => self.rest(begun).await?,
            }
        }
    }

    /// After so long a question is asked again.
    fn patience(&self) -> Duration {
        Duration::from_millis(self.shared.settings.question_ms / 2)
    }

    fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    /// Waits before the next try, unless the time of the request is over.
    async fn rest(&self, begun: Millis) -> Result<(), Refusal> {
        if self.shared.inbox.is_closed() {
            return Err(refusal(PutError::Stopped));
        }
        let most = self.shared.settings.request_ms;
        if self.now().since(begun) >= most {
            let why = ClientError::NoAnswer(most);
            return Err(Refusal::new(RefusalWord::NotLeading, Again::Request, why));
        }
        sleep(Duration::from_millis(REQUEST_REST_MS)).await;
        Ok(())
    }
}

/// What a read gives.
pub(super) enum Given {
    Records(OrderedRecords),
    Found(usize, SeekFor, Found),
}

/// What comes next of a read; none: there is no more.
pub(super) async fn next_given(
    steps: &mut Steps,
    come: &mut mpsc::Receiver<ReadAnswer>,
) -> Result<Option<Given>, Refusal> {
    loop {
        match steps.next() {
            Step::Piece(records) => return Ok(Some(Given::Records(records))),
            Step::Found(range, what, found) => return Ok(Some(Given::Found(range, what, found))),
            Step::Over(Ok(())) => return Ok(None),
            Step::Over(Err(ReadError::Failed(failed))) => return Err(failed.into()),
            Step::Over(Err(ReadError::Stopped)) => return Err(refusal(PutError::Stopped)),
            Step::Wait(wait) => {
                if let Ok(Some(answer)) = timeout(wait, come.recv()).await {
                    steps.answered(answer);
                }
            }
        }
    }
}

/// The next records of a read; none: there are no more.
async fn next_piece(
    steps: &mut Steps,
    come: &mut mpsc::Receiver<ReadAnswer>,
) -> Result<Option<OrderedRecords>, Refusal> {
    while let Some(given) = next_given(steps, come).await? {
        if let Given::Records(records) = given {
            return Ok(Some(records));
        }
    }
    Ok(None)
}

/// An answer to another request: a node of another version.
pub(super) fn unexpected() -> Refusal {
    let why =
        "the node that was asked has answered something else: look whether all nodes have the same version";
    Refusal::new(RefusalWord::NotLeading, Again::Request, why)
}

fn bytes_of(plan: &Plan) -> u64 {
    plan.winners.values().map(|winner| winner.bytes).sum()
}

fn status(overview: &ShuffleOverview) -> Status {
    let stage = match overview.stage {
        leader::ShuffleStage::Open | leader::ShuffleStage::Sealing => Stage::Open,
        leader::ShuffleStage::Sealed => Stage::Sealed,
        leader::ShuffleStage::Failed(_) => Stage::Failed,
    };
    Status {
        stage,
        winners: overview.partitions,
        records: overview.records,
        bytes: overview.bytes,
        version: overview.version,
        ranges: overview.ranges,
        waits_for: waits_for(overview),
    }
}

/// What it waits for, for people; empty: nothing.
pub(crate) fn waits_for(overview: &ShuffleOverview) -> String {
    match overview.stage {
        leader::ShuffleStage::Sealing if !overview.lacking.is_empty() => {
            let named: Vec<String> = overview.lacking.iter().take(10).map(u32::to_string).collect();
            let rest = if overview.lacking.len() > 10 { ", …" } else { "" };
            format!("a whole attempt of each of the partitions {}{rest}", named.join(", "))
        }
        leader::ShuffleStage::Sealing if overview.dividing > 0 => {
            format!("the division of {} slots, and then counts, before it is sealed", overview.dividing)
        }
        leader::ShuffleStage::Sealing => "the counts of its ranges, before it is sealed".to_owned(),
        leader::ShuffleStage::Failed(failure) => failure.to_string(),
        leader::ShuffleStage::Open | leader::ShuffleStage::Sealed => String::new(),
    }
}
