//! Election: one leader at a time, under a term that only grows.
//!
//! Three keys. `…/term` lasts and counts. `…/leader` is ephemeral: who holds it leads. Taking the lead is one
//! transaction: the leader key is absent, the term is what was read; write the leader key, add one to the
//! term. So two candidates cannot both win, and a term names one leader for ever. A leader conditions every
//! change on its leader key still being the one it wrote ([`Leadership::fence`]): a leader that overslept
//! its session is refused, however late it wakes (O10).
//!
//! `…/commit` is written by each change of a leader. Its version is that of the leader's last commit, so a store that
//! lacks commits which the leader was told are durable shows it, whatever the store does to its versions (D20).
//!
//! That a fence refuses commits is not enough for what a leader does without one: [`LeaderLease`](crate::LeaderLease)
//! says until when it may.
//!
//! A handle remembers the highest term that it has read or was given ([`Election::raise`]), and leads above that one
//! only: a term that somebody has set back, or that was restored from an older state, is not given a second time.
//!
//! It is written once, on the contract, and so is the same on every backend. It is not fair: when a
//! leader goes, any candidate may be next. Coordinators are alike, so a queue would buy nothing.

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

/// The number of a leadership. Grows by one with each, never repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(u64);

impl Term {
    /// For storing and comparing with stored terms.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
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

/// Who leads, as anyone can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its term.
    pub term: Term,
    /// What the candidate said of itself: an address, for instance.
    pub candidate: Bytes,
}

/// The same term, taken by the same commit.
impl PartialEq for Leadership {
    fn eq(&self, other: &Self) -> bool {
        (self.term, &self.leader, self.version) == (other.term, &other.leader, other.version)
    }
}

impl Eq for Leadership {}

/// A place to be elected to.
#[derive(Clone, Debug)]
pub struct Election {
    coordination: Arc<dyn Coordination>,
    leader: Key,
    term: Key,
    commit: Key,
    /// The highest term that is known of; the same for all clones.
    highest: Arc<AtomicU64>,
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

/// The newest of some versions; a copy is the same. The version of a store only grows, as does that of a leader's last
/// commit: a store that is at a lower one was restored from an older state.
#[derive(Clone, Debug)]
pub(crate) struct Newest(Arc<AtomicU64>);

impl Newest {
    fn new(version: Version) -> Self {
        Self(Arc::new(AtomicU64::new(version.get())))
    }

    /// The newest so far: to be taken before the store is asked, as answers may overtake each other.
    pub(crate) fn get(&self) -> Version {
        Version::new(self.0.load(Ordering::Relaxed))
    }

    /// There was that version.
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

    /// The last term by the backend's word, if that was below one that is known of: somebody has set it back.
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

    /// At which version the store was at least.
    pub(crate) fn seen(&self) -> &Newest {
        &self.seen
    }

    /// The version of its last commit that is known to be durable.
    pub(crate) fn last_commit(&self) -> &Newest {
        &self.committed
    }

    /// A commit that was [fenced](Self::fence) got that version: where the store does not have it any more, the store
    /// has gone back, and [`LeaderLease`](crate::LeaderLease) deposes the leader.
    pub fn committed(&self, version: Version) {
        self.seen.learned(version);
        self.committed.learned(version);
    }

    /// Adds the condition that this leadership still holds, and the mark of its commits: [`FENCE_STEPS`] steps.
    #[must_use]
    pub fn fence(&self, transaction: Transaction) -> Transaction {
        let (commit, term) = self.commit_mark();
        transaction.when(&self.leader, Expected::At(self.version)).put(commit, term)
    }

    /// Whether a commit was refused because this leadership holds no more.
    #[must_use]
    pub fn is_fenced_off(&self, error: &Error) -> bool {
        matches!(error, Error::Refused { key, .. } if *key == self.leader)
    }
}

impl Election {
    /// The election at `place`; two keys are kept below it.
    pub fn new(coordination: Arc<dyn Coordination>, place: &Key) -> Result<Self> {
        let (leader, term, commit) = (place.join("leader")?, place.join("term")?, place.join("commit")?);
        Ok(Self { coordination, leader, term, commit, highest: Arc::default() })
    }

    /// The key and the value that say, at `place`, that `last` was the last term: for an election whose earlier terms
    /// are not known any more. The next leader's is above it.
    pub fn last_term(place: &Key, last: Term) -> Result<(Key, Bytes)> {
        Ok((place.join("term")?, last.to_bytes()))
    }

    /// What changes when somebody begins or ceases to lead: to be watched.
    #[must_use]
    pub fn scope(&self) -> Scope {
        Scope::One(self.leader.clone())
    }

    /// `term` is known of, from before this handle was there: who leads by it from now on leads above that.
    pub fn raise(&self, term: Term) {
        self.highest.fetch_max(term.0, Ordering::Relaxed);
    }

    /// The highest term that is known of.
    #[must_use]
    pub fn highest(&self) -> Term {
        Term(self.highest.load(Ordering::Relaxed))
    }

    /// Who leads now.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let entry = self.coordination.read(&self.leader).await?;
        let leader = entry.map(|entry| self.decode(&entry)).transpose()?;
        if let Some(leader) = &leader {
            self.raise(leader.term);
        }
        Ok(leader)
    }

    /// Takes the lead if nobody has it. `None`: somebody has. A leader key that goes with no session is nobody's: a
    /// process that leads writes it with its own, so somebody else has written there, and it would stay for ever.
    pub async fn try_lead(&self, session: &Session, candidate: &Bytes) -> Result<Option<Leadership>> {
        let there = self.coordination.read(&self.leader).await?;
        if let Some(entry) = &there {
            let held = self.decode(entry).map(|leader| leader.term);
            match entry.session {
                Some(owner) if owner != session.id() => {
                    self.raise(held.unwrap_or_default());
                    return Ok(None);
                }
                // Ours already: an earlier attempt whose outcome was not known has gone through. One of a term below
                // the highest was set back together with all the rest, and is taken anew, as is what cannot be read.
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
            // What the count was is known all the same.
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

    /// Waits until it leads; `candidate` says of itself what it is at the moment of each attempt. Fails when the
    /// session is lost, or with the backend's error; an indefinite one is safe to repeat.
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

    /// Leaves in order: the next leader need not wait for the session to end.
    pub async fn resign(&self, leadership: Leadership) -> Result<()> {
        let transaction = leadership.fence(Transaction::new()).delete(&self.leader);
        self.coordination.commit(transaction).await.map(|_| ())
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
