//! What is known of one replica beyond the map.
//!
//! A coordinator keeps one of these for each replica, so its room counts: 24 bytes, and 40 for a load once there is
//! one. Why a callback failed is rare, so it lies outside, beside the load.

use crate::base::id::Epoch;
use crate::node::exchange::Phase;
use crate::node::load::Load;

/// What a worker has said of a replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    epoch: Epoch,
    reported: ReportedPhase,
}

#[derive(Debug, Clone, PartialEq)]
enum ReportedPhase {
    Healthy(HealthyPhase, Option<Box<Load>>),
    Failed(Box<(Phase, Option<Box<Load>>)>),
}

/// A [`Phase`] that is not [`Phase::Failed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HealthyPhase {
    Loading,
    Ready,
    Serving,
    Unloading,
    Unloaded,
    Kept,
    Dropped,
}

impl HealthyPhase {
    fn phase(self) -> &'static Phase {
        match self {
            HealthyPhase::Loading => &Phase::Loading,
            HealthyPhase::Ready => &Phase::Ready,
            HealthyPhase::Serving => &Phase::Serving,
            HealthyPhase::Unloading => &Phase::Unloading,
            HealthyPhase::Unloaded => &Phase::Unloaded,
            HealthyPhase::Kept => &Phase::Kept,
            HealthyPhase::Dropped => &Phase::Dropped,
        }
    }
}

impl Observed {
    /// What the worker has done, under which epoch, and the last measured load.
    pub fn new(phase: Phase, epoch: Epoch, load: Option<Box<Load>>) -> Observed {
        let well = match phase {
            Phase::Loading => HealthyPhase::Loading,
            Phase::Ready => HealthyPhase::Ready,
            Phase::Serving => HealthyPhase::Serving,
            Phase::Unloading => HealthyPhase::Unloading,
            Phase::Unloaded => HealthyPhase::Unloaded,
            Phase::Kept => HealthyPhase::Kept,
            Phase::Dropped => HealthyPhase::Dropped,
            Phase::Failed(_) => {
                return Observed { epoch, reported: ReportedPhase::Failed(Box::new((phase, load))) };
            }
        };
        Observed { epoch, reported: ReportedPhase::Healthy(well, load) }
    }

    /// What the worker says that it has done with the replica.
    pub fn phase(&self) -> &Phase {
        match &self.reported {
            ReportedPhase::Healthy(well, _) => well.phase(),
            ReportedPhase::Failed(failed) => &failed.0,
        }
    }

    /// The epoch of the shard by which the worker acted, as its report says.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Its last measured load.
    pub fn load(&self) -> Option<&Load> {
        match &self.reported {
            ReportedPhase::Healthy(_, load) => load.as_deref(),
            ReportedPhase::Failed(failed) => failed.1.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_it_was_told() {
        let phases = [
            Phase::Loading,
            Phase::Ready,
            Phase::Serving,
            Phase::Unloading,
            Phase::Unloaded,
            Phase::Kept,
            Phase::Dropped,
            Phase::failed(3, "no room".into()),
        ];
        let load = Load { keys: 7, ..Load::default() };
        for phase in phases {
            for load in [None, Some(&load)] {
                let seen = Observed::new(phase.clone(), Epoch(5), load.cloned().map(Box::new));
                assert_eq!((seen.phase(), seen.epoch(), seen.load()), (&phase, Epoch(5), load));
            }
        }
    }

    #[test]
    fn it_takes_as_little_room_as_the_module_says() {
        assert_eq!((size_of::<Observed>(), size_of::<Load>()), (24, 40));
    }
}
