//! Election: one leader at a time, under a term that only grows.
//!
//! Three keys. `…/term` lasts and counts. `…/leader` is ephemeral: its holder leads. Taking the lead is one
//! transaction: on condition that the leader key is absent and the term is what was read, it writes the leader key and
//! adds one to the term. So two candidates cannot both win, and a term names one leader for ever. A leader conditions
//! every change on the leader key that it wrote ([`Leadership::fence`]): the backend refuses a leader whose session
//! ended while it slept, however late it wakes (O10).
//!
//! Each change of a leader writes `…/commit`. Its version is that of the leader's last commit, so it shows when a store
//! lacks commits that it acknowledged, whatever the store does to its versions (D20).
//!
//! A fence does not cover what a leader does without a commit: [`LeaderLease`](crate::LeaderLease)
//! says until when it may.
//!
//! A handle remembers the highest term that it has read or was given ([`Election::raise`]), and leads above that one
//! only: no term is given twice, even when the stored term was set back or restored from an older state.
//!
//! It uses the contract alone, and so is the same on every backend. It is not fair: when a
//! leader goes, any candidate may be next. Coordinators are alike, so a queue would be of no use.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut, Bytes, BytesMut};

use crate::contract::Coordination;
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::limits::MAX_TERM;
use crate::session::Session;
use crate::transaction::{Entry, Expected, Transaction, Version};

/// How many steps [`Leadership::fence`] adds to a transaction.
pub const FENCE_STEPS: usize = 2;

/// The number of a leadership. Grows with each, never repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(u64);

impl Term {
    /// Wraps a number, such as a term that was stored.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The plain number, for storing the term and for sending it.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// As it is stored.
    fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_be_bytes())
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {}", self.0)
    }
}

/// The leader, as every process reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The term that it leads in; every later leader has a higher one.
    pub term: Term,
    /// The candidate's own value: an address, for instance.
    pub candidate: Bytes,
}

/// The same term, taken by the same commit.
impl PartialEq for Leadership {
    fn eq(&self, other: &Self) -> bool {
        (self.term, &self.leader, self.version) == (other.term, &other.leader, other.version)
    }
}

impl Eq for Leadership {}

/// An election at one place.
#[derive(Clone, Debug)]
pub struct Election {
    coordination: Arc<dyn Coordination>,
    leader: Key,
    term: Key,
    commit: Key,
    /// The highest term that is known of; the same for all clones.
    highest: Arc<AtomicU64>,
}

/// A transaction that the backend refuses when a leadership has ended. Only [`Leadership::fence`] makes one: what takes it,
/// such as a store of maps, cannot be made to write for a deposed leader.
#[derive(Clone, Debug)]
#[must_use]
pub struct FencedTransaction(Transaction);

impl FencedTransaction {
    /// Adds all that `other` requires and changes.
    pub fn and(self, other: Transaction) -> Self {
        Self(self.0.and(other))
    }
}

/// A won election. Holds as long as the session and the leader key do.
#[derive(Clone, Debug)]
pub struct Leadership {
    term: Term,
    leader: Key,
    commit: Key,
    version: Version,
    value: Bytes,
    set_back: Option<Term>,
    seen: Newest,
    committed: Newest,
}

/// The newest of some versions; clones share it. The version of a store only grows, as does that of a leader's last
/// commit: a store that is at a lower one was restored from an older state.
#[derive(Clone, Debug)]
pub(crate) struct Newest(Arc<AtomicU64>);

impl Newest {
    fn new(version: Version) -> Self {
        Self(Arc::new(AtomicU64::new(version.get())))
    }

    /// The newest so far. Take it before you ask the store, as answers may overtake each other.
    pub(crate) fn get(&self) -> Version {
        Version::new(self.0.load(Ordering::Relaxed))
    }

    /// Notes a version that the store gave; a lower one changes nothing.
    pub(crate) fn learned(&self, version: Version) {
        self.0.fetch_max(version.get(), Ordering::Relaxed);
    }
}

impl Leadership {
    /// Its term, to be handed to all storage outside.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// The stored term, if it was below the highest known one: somebody has set it back.
    #[must_use]
    pub fn set_back(&self) -> Option<Term> {
        self.set_back
    }

    pub(crate) fn key(&self) -> &Key {
        &self.leader
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// What it wrote to its key.
    pub(crate) fn value(&self) -> &Bytes {
        &self.value
    }

    /// The key that each of its commits writes, and what they write there.
    pub(crate) fn commit_mark(&self) -> (&Key, Bytes) {
        (&self.commit, self.term.to_bytes())
    }

    /// The newest store version that it saw.
    pub(crate) fn seen(&self) -> &Newest {
        &self.seen
    }

    /// The version of its last commit that is known to be durable.
    pub(crate) fn last_commit(&self) -> &Newest {
        &self.committed
    }

    /// Adds the condition that this leadership still holds, and the mark of its commits: [`FENCE_STEPS`] steps.
    pub fn fence(&self, transaction: Transaction) -> FencedTransaction {
        let (commit, term) = self.commit_mark();
        // First: of several conditions that do not hold, the refusal names this one.
        let fence = Transaction::new().when(&self.leader, Expected::At(self.version)).put(commit, term);
        FencedTransaction(fence.and(transaction))
    }

    /// Commits what it has fenced, and notes the version: a store that later lacks it has gone back, and
    /// [`LeaderLease`](crate::LeaderLease) deposes the leader.
    ///
    /// # Errors
    /// The backend's; whether the fence has refused it says [`Leadership::is_fenced_off`].
    pub async fn commit(
        &self,
        coordination: &dyn Coordination,
        transaction: FencedTransaction,
    ) -> Result<Version> {
        let version = coordination.commit(transaction.0).await?;
        self.committed(version);
        Ok(version)
    }

    /// A commit of this leadership got that version.
    pub(crate) fn committed(&self, version: Version) {
        self.seen.learned(version);
        self.committed.learned(version);
    }

    /// Whether the backend refused a commit because this leadership has ended.
    #[must_use]
    pub fn is_fenced_off(&self, error: &Error) -> bool {
        matches!(error, Error::Refused { key, .. } if *key == self.leader)
    }
}

impl Election {
    /// The election at `place`, with three keys below it.
    pub fn new(coordination: Arc<dyn Coordination>, place: &Key) -> Result<Self> {
        let (leader, term, commit) = (place.join("leader")?, place.join("term")?, place.join("commit")?);
        Ok(Self { coordination, leader, term, commit, highest: Arc::default() })
    }

    /// The key and the value that set the last term at `place` to `last`: for an election whose earlier terms
    /// are not known any more. The next leader's is above it.
    pub fn last_term(place: &Key, last: Term) -> Result<(Key, Bytes)> {
        Ok((place.join("term")?, last.to_bytes()))
    }

    /// The scope to watch for a new or lost leader.
    #[must_use]
    pub fn scope(&self) -> Scope {
        Scope::One(self.leader.clone())
    }

    /// Notes `term`, known from elsewhere: this handle leads above it from now on.
    pub fn raise(&self, term: Term) {
        self.highest.fetch_max(term.0, Ordering::Relaxed);
    }

    /// The highest term that is known of.
    #[must_use]
    pub fn highest(&self) -> Term {
        Term(self.highest.load(Ordering::Relaxed))
    }

    /// Reads the leader key; `None` if there is no leader now. Raises this handle to the leader's term.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let entry = self.coordination.read(&self.leader).await?;
        let leader = entry.map(|entry| self.decode(&entry)).transpose()?;
        if let Some(leader) = &leader {
            self.raise(leader.term);
        }
        Ok(leader)
    }

    /// Takes the lead if no other session has it, else `None`. It replaces a leader key without a session: a
    /// leader writes it with its own, so another program wrote it, and it would stay for ever.
    pub async fn try_lead(&self, session: &Session, candidate: &Bytes) -> Result<Option<Leadership>> {
        let there = self.coordination.read(&self.leader).await?;
        if let Some(entry) = &there {
            let held = self.decode(entry).map(|leader| leader.term);
            match entry.session {
                Some(owner) if owner != session.id() => {
                    self.raise(held.unwrap_or_default());
                    return Ok(None);
                }
                // Ours already: an earlier attempt with an unknown outcome has gone through. One of a term below
                // the highest was set back with the whole store, and is taken anew, as is one that cannot be read.
                Some(_) if self.is_ours(entry, candidate) => {
                    let term = held?;
                    return Ok(Some(self.leadership(term, entry.version, entry.value.clone(), None)));
                }
                Some(_) | None => {}
            }
        }
        let last = self.coordination.read(&self.term).await?;
        let highest = self.highest().0;
        let stored = match last.as_ref().map_or(Ok(0), |entry| self.decode_term(&entry.value)) {
            // This handle knows the count.
            Err(_) if highest > 0 => 0,
            stored => stored?,
        };
        let set_back = (stored < highest).then_some(Term(stored));
        let number = stored.max(highest).checked_add(1).ok_or_else(|| self.malformed(&self.term))?;
        let term = Term(number);
        let mut value = BytesMut::with_capacity(8 + candidate.len());
        value.put_u64(term.0);
        value.put_slice(candidate);
        let value = value.freeze();
        let transaction = Transaction::new()
            .when(&self.leader, Expected::unchanged(there.as_ref()))
            .when(&self.term, Expected::unchanged(last.as_ref()))
            .put_ephemeral(&self.leader, value.clone(), session.id())
            .put(&self.term, term.to_bytes())
            .put(&self.commit, term.to_bytes());
        match self.coordination.commit(transaction).await {
            Ok(version) => {
                self.raise(term);
                Ok(Some(self.leadership(term, version, value, set_back)))
            }
            Err(Error::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until it leads; `candidate` gives the value to write at each attempt. Fails when the
    /// session is lost, or with the backend's error; after an indefinite one the caller may repeat.
    pub async fn lead(
        &self,
        session: &Session,
        candidate: impl Fn() -> Bytes + Send + Sync,
    ) -> Result<Leadership> {
        tokio::select! {
            won = self.campaign(session, candidate) => won,
            () = session.lost() => Err(Error::SessionEnded { session: session.id() }),
        }
    }

    async fn campaign(
        &self,
        session: &Session,
        candidate: impl Fn() -> Bytes + Send + Sync,
    ) -> Result<Leadership> {
        let mut watch = self.coordination.watch(self.scope(), None).await?;
        loop {
            watch.next().await?;
            if let Some(leadership) = self.try_lead(session, &candidate()).await? {
                return Ok(leadership);
            }
        }
    }

    /// Resigns: the next leader need not wait for the session to end.
    pub async fn resign(&self, leadership: Leadership) -> Result<()> {
        let transaction = leadership.fence(Transaction::new().delete(&self.leader));
        self.coordination.commit(transaction.0).await.map(|_| ())
    }

    fn leadership(&self, term: Term, version: Version, value: Bytes, set_back: Option<Term>) -> Leadership {
        Leadership {
            term,
            leader: self.leader.clone(),
            commit: self.commit.clone(),
            version,
            value,
            set_back,
            seen: Newest::new(version),
            committed: Newest::new(version),
        }
    }

    /// Whether the leader key is as `candidate` has written it, at a term that was not set back.
    fn is_ours(&self, entry: &Entry, candidate: &Bytes) -> bool {
        self.decode(entry).is_ok_and(|leader| leader.term >= self.highest() && leader.candidate == *candidate)
    }

    fn decode(&self, entry: &Entry) -> Result<Leader> {
        let (number, candidate) =
            entry.value.split_first_chunk::<8>().ok_or_else(|| self.malformed(&self.leader))?;
        let term = Term(u64::from_be_bytes(*number));
        match term.0 <= MAX_TERM {
            true => Ok(Leader { term, candidate: entry.value.slice_ref(candidate) }),
            false => Err(self.malformed(&self.leader)),
        }
    }

    fn decode_term(&self, value: &[u8]) -> Result<u64> {
        let number = value.try_into().map(u64::from_be_bytes).ok();
        number.filter(|number| *number <= MAX_TERM).ok_or_else(|| self.malformed(&self.term))
    }

    fn malformed(&self, key: &Key) -> Error {
        let what = format!(
            "key `{key}` holds what this program did not write there: it is left alone; check the root"
        );
        Error::Invalid { what }
    }
}
