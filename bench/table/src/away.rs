//! The coordinator is killed and stays away: no read and no write may fail.

use crate::cluster::Cluster;
use crate::load::{Load, Outcome};
use crate::{Done, Run, fill};
use bench_gauge::{now, rest, say};

/// Takes it away once.
pub fn bench(run: &Run) -> Done {
    let shards = run.number("--shards", 1_000, 60);
    let seconds = run.number("--seconds", 60, 12);
    let mut cluster = Cluster::start(run, "partage", shards)?;
    let load = Load::start(&cluster.resp, &[cluster.layout()?.number_of_each()])?;
    load.rounds(4)?;
    let away = now();
    cluster.coordinator.kill();
    rest(seconds * 1_000);
    let back = now();
    cluster.restart_coordinator()?;
    cluster.settles()?;
    load.rounds(4)?;
    let told = load.finish()?;
    let end = now();
    let failed = [Outcome::Refused, Outcome::Unknown].map(|outcome| told.count(outcome, away, back));
    let failed_reads = told.failed_reads.iter().filter(|sent| (away..back).contains(*sent)).count();
    say(&format!(
        "the coordinator is away for {seconds} s: {} writes acknowledged, {} refused, {} unknown; {failed_reads} reads failed; \
         longest stall of a write {:.0} ms, of a read {:.0} ms",
        told.count(Outcome::Acknowledged, away, back),
        failed[0],
        failed[1],
        told.longest_stall(away, back, &|_| true).as_secs_f64() * 1e3,
        told.longest_read.as_secs_f64() * 1e3,
    ));
    say(&format!(
        "it is back: {} writes acknowledged, {} refused, {} unknown; longest stall of a write {:.0} ms",
        told.count(Outcome::Acknowledged, back, end),
        told.count(Outcome::Refused, back, end),
        told.count(Outcome::Unknown, back, end),
        told.longest_stall(back, end, &|_| true).as_secs_f64() * 1e3,
    ));
    told.show_failures(away);
    fill::none_is_lost(&told.lies)?;
    match failed.iter().sum::<usize>() + failed_reads {
        0 => Ok(()),
        failed => Err(format!("{failed} requests failed while no coordinator was there").into()),
    }
}
