//! Scenarios of a whole cluster on simulated time, each short enough to be followed by hand.

mod crash_loop;
mod disk;
mod disks;
mod durable;
mod durable_reshard;
mod during_commit;
mod events;
mod fixed;
mod growth;
mod guard;
mod interrupted;
mod kept;
mod later_maps;
mod leads;
mod moves;
mod overdue;
mod planning;
mod reach;
mod recreate;
mod replicated;
mod replicated_reshard;
mod reshape;
mod reshard;
mod restored;
mod serving;
mod session;
pub(super) mod test_cluster;
mod transfers;
mod unopened;

use super::{Cluster, Moment};
use crate::base::id::PlanId;
use crate::base::name::KeyspaceName;
use crate::plan::{Origin, Planned};

/// Makes a plan of these changes, as a command would.
pub(in crate::cluster) fn submit(
    cluster: &mut Cluster,
    at: Moment,
    name: &KeyspaceName,
    origin: Origin,
    changes: Vec<Planned>,
) -> PlanId {
    let plan = cluster.plan_of(at, name, origin, changes);
    let id = plan.id;
    let Cluster { settings, record, keyspaces, plans, outbox, .. } = cluster;
    plans.add(plan, record, (&*keyspaces, &*settings), outbox);
    id
}
