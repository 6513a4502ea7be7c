//! Scenarios of a whole cluster on simulated time, each short enough to be followed by hand.

mod ahead;
mod crash_loop;
mod disks;
mod durable;
mod durable_reshard;
mod events;
mod fixed;
mod full_disk;
mod growth;
mod guard;
mod interrupted;
mod kept;
mod meanwhile;
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
mod unopened;
