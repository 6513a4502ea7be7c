//! What a leader knows of one shuffle.

use super::dividing::need;
use super::sealing::Sealing;
use crate::shuffle::bounds::{Tag, Versions};
use crate::shuffle::log::{Decision, Superseded};
use crate::shuffle::message::Word;
use crate::shuffle::plan::{Division, Needed, Plan};
use crate::shuffle::record::EndMark;
use crate::shuffle::settings::Settings;
use crate::shuffle::sketch::Sketch;
use crate::shuffle::{AttemptKey, Failure, PoolSlot, ShuffleOptions, Terms, Writer};
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How far a shuffle is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Open,
    Sealed(Arc<Plan>),
    Failed(Failure),
}

/// A shuffle that is led.
#[derive(Debug, Clone)]
pub(super) struct Led {
    pub(super) terms: Terms,
    pub(super) options: Arc<ShuffleOptions>,
    pub(super) state: State,
    pub(super) versions: Versions,
    /// Up to which batch of each writer a tag was divided.
    pub(super) divided: BTreeMap<Tag, BTreeMap<Writer, u64>>,
    /// The divisions that count, and their last batch in each slot.
    pub(super) divisions: BTreeMap<Writer, BTreeMap<PoolSlot, u64>>,
    /// Whole attempts of each partition, the first heard first.
    pub(super) marks: BTreeMap<u32, Vec<EndMark>>,
    /// Up to which batch each stream is needed by the first attempt of each partition, and by the divisions that count: what
    /// [`Led::needed`] says of these. They may be thousands in many slots, so it is not made anew for each round of divisions.
    pub(super) first_needed: Needed,
    /// Whole attempts that were heard of until it was sealed.
    pub(super) heard: u64,
    /// How far each node has said which marks it has.
    pub(super) asked: BTreeMap<NodeId, Asked>,
    pub(super) samples: BTreeMap<NodeId, (Incarnation, Arc<Sketch>)>,
    /// Keys that the last bounds were made from.
    pub(super) sampled: u64,
    /// Decisions on it that are under way.
    pub(super) deciding: usize,
    pub(super) dividing: BTreeMap<PoolSlot, UnderWay>,
    pub(super) divide_at: Millis,
    /// Divisions that are done and not decided yet.
    pub(super) done: VecDeque<Superseded>,
    pub(super) seal: Option<Sealing>,
    pub(super) touched: Millis,
}

/// What a node was asked for of the marks that it has.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked {
    /// The last attempt of an answer that had not all: the next question is for the marks behind it.
    pub(super) after: Option<AttemptKey>,
    /// The time of the last question.
    pub(super) at: Option<Millis>,
}

/// A division that a replica was asked for.
#[derive(Debug, Clone)]
pub(super) struct UnderWay {
    pub(super) division: Arc<Division>,
    /// How many replicas were asked before.
    pub(super) asked: usize,
    pub(super) sent: Millis,
    /// When that one was asked last.
    pub(super) again: Millis,
    pub(super) is_done: bool,
}

impl Led {
    pub(super) fn new(now: Millis, terms: Terms, options: Arc<ShuffleOptions>) -> Led {
        // What a log says was not checked by this process.
        let terms = terms.bounded();
        Led {
            terms,
            options,
            state: State::Open,
            versions: Versions::new(terms.stashes),
            divided: BTreeMap::new(),
            divisions: BTreeMap::new(),
            marks: BTreeMap::new(),
            first_needed: Needed::new(),
            heard: 0,
            asked: BTreeMap::new(),
            samples: BTreeMap::new(),
            sampled: 0,
            deciding: 0,
            dividing: BTreeMap::new(),
            divide_at: now,
            done: VecDeque::new(),
            seal: None,
            touched: now,
        }
    }

    /// Takes up a decision, which counts now.
    pub(super) fn apply(&mut self, decision: &Decision) {
        match decision {
            Decision::Start(..) | Decision::Ended(_) => {}
            Decision::Bounds(bounds) => {
                self.versions.push(bounds.as_ref().clone());
            }
            Decision::Superseded(superseded) => {
                for tag in &superseded.tags {
                    let divided = self.divided.entry(*tag).or_default();
                    for (writer, upto) in &superseded.upto {
                        let before = divided.entry(writer.clone()).or_default();
                        *before = (*before).max(*upto);
                    }
                }
                self.divisions.entry(superseded.writer.clone()).or_default().extend(superseded.last.clone());
                for (slot, last) in &superseded.last {
                    need(&mut self.first_needed, *slot, &superseded.writer, *last);
                }
                self.dividing.remove(&superseded.slot);
                self.need_division(superseded);
            }
            Decision::Sealed(plan) => self.state = State::Sealed(plan.clone()),
            Decision::Failed(failure) => self.state = State::Failed(*failure),
        }
    }

    /// In how many milliseconds it ends if no client asks for it: by its own time to live, or by that of the settings.
    pub(super) fn ends_in_ms(&self, now: Millis, settings: &Settings) -> u64 {
        let ttl = match self.state {
            State::Open => self.options.unsealed_ttl_ms.unwrap_or(settings.unsealed_ttl_ms),
            State::Sealed(_) | State::Failed(_) => {
                self.options.sealed_ttl_ms.unwrap_or(settings.sealed_ttl_ms)
            }
        };
        ttl.saturating_sub(now.since(self.touched))
    }

    pub(super) fn word(&self) -> Word {
        match &self.state {
            State::Open => Word::Open(Arc::new(self.versions.current().clone()), self.terms.durability),
            State::Sealed(plan) => Word::Sealed(plan.clone()),
            State::Failed(failure) => Word::Failed(*failure),
        }
    }
}
