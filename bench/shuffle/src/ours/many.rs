//! Many small shuffles, some at a time, and one after the other: from the start until a node has taken the first record, and
//! until all is read. One process does all of them, each to its end, and checks each.

use super::cluster::Cluster;
use super::control::options;
use super::job::Job;
use super::reader::read_all;
use super::shuffle::compare;
use super::writer::{BUDGETS, nodes_of, run};
use crate::client_process::{ClientProcess, ready};
use crate::{Done, Got, Run};
use bench_gauge::{Durations, core_seconds_ever_of, myself, now, say};
use bench_shuffle::check::Tally;
use partage_shuffle_client::{Attempt, Client, Error, PackedRecords, Sealed, Settings, Written};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Goals in milliseconds: the median until the first record is taken, and until a lone one is whole.
const FIRST_MS: f64 = 5.0;
const LONE_MS: f64 = 150.0;
/// Input partitions of each, written at a time.
const INPUTS: u32 = 2;
/// Partitions in which each is read.
const PARTITIONS: u64 = 4;
/// Different inputs, which the shuffles have in turn.
const VARIANTS: u64 = 8;
/// Bytes of the records of a frame.
const FRAME_BYTES: usize = 256 << 10;

/// Prints how long the shuffles take, one after the other and some at a time.
pub fn bench(run: &Run) -> Done {
    let count = run.of.number("--shuffles", 1_000, 50);
    let at_once = run.of.number("--at-once", 32, 32);
    let lone = run.of.number("--lone", 50, 5);
    let mb = run.of.number("--mb", 10, 1);
    let (durability, usual) = (run.durability, Job::usual(mb as f64 / 1e3));
    let job = Job { inputs: INPUTS, partitions: PARTITIONS, is_made: true, durability, ..usual };
    for way in run.ways() {
        let name = way.name();
        let cluster = Cluster::start(run, &format!("many-{name}"))?;
        let nodes = cluster.addresses_word(way);
        let disk = cluster.disk_bytes();
        for (count, at_once) in [(lone, 1), (count, at_once)] {
            let (begin, cores) = (now(), cluster.core_seconds());
            let mut took = of_process(&nodes, count, at_once, &job)?;
            let seconds = (now() - begin).as_secs_f64();
            let gb = job.gb() * count as f64;
            let cores = (cluster.core_seconds() - cores + took.cores) / gb;
            say(&format!(
                "{name:4} {count} shuffles of {mb} MB, {at_once} at a time: all exact, {seconds:.1} s by the clock, {cores:.2} core-s/GB"
            ));
            say(&format!(
                "    start to first record taken: {} (goal p50 {FIRST_MS} ms at {at_once} at a time)",
                took.first.line()
            ));
            let goal = if at_once == 1 { format!(" (goal p50 {LONE_MS} ms)") } else { String::new() };
            say(&format!("    start to all read: {}{goal}", took.whole.line()));
        }
        let gone = cluster.is_empty()?;
        let more = cluster.disk_bytes().saturating_sub(disk);
        say(&format!(
            "{name:4} nothing is left of any: no shuffle and no file of records {gone:.1} s after the last; logs have grown by {more} bytes"
        ));
    }
    Ok(())
}

#[derive(Default)]
struct Took {
    first: Durations,
    whole: Durations,
    cores: f64,
}

fn of_process(nodes: &str, count: u64, at_once: u64, job: &Job) -> Got<Took> {
    let (count, at_once) = (count.to_string(), at_once.to_string());
    let mut command = myself()?;
    command.args(["ours-many", nodes, &count, &at_once]).args(job.words());
    let (mut process, _) = ClientProcess::start(&mut command)?;
    let begun = core_seconds_ever_of(process.pid());
    process.go()?;
    let mut took = Took::default();
    loop {
        let line = process.line()?;
        if line == "done" {
            break;
        }
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [first, whole] = numbers.as_slice() else {
            return Err(format!("a process of a client says {line:?}").into());
        };
        took.first.push(Duration::from_micros(*first));
        took.whole.push(Duration::from_micros(*whole));
    }
    took.cores = core_seconds_ever_of(process.pid()) - begun;
    Ok(took)
}

/// What the process does.
pub fn process(words: &[String]) -> Done {
    let [_, nodes, count, at_once, job @ ..] = words else {
        return Err("ours-many NODES COUNT AT_ONCE JOB".into());
    };
    let (count, at_once) = (count.parse::<usize>()?, at_once.parse::<usize>()?);
    let (job, nodes) = (Job::of(job)?, nodes_of(nodes)?);
    let seeds = (0..VARIANTS).map(|variant| Job { seed: job.seed.wrapping_add(variant), ..job });
    let variants = seeds.map(Variant::new).collect::<Got<Vec<Variant>>>()?;
    let variants: Vec<Arc<Variant>> = variants.into_iter().map(Arc::new).collect();
    run(async move {
        let client = Client::connect(nodes, Settings::default()).await?;
        ready("ready")?;
        let mut under_way: JoinSet<Result<(), String>> = JoinSet::new();
        for variant in variants.iter().cycle().take(count) {
            if under_way.len() >= at_once
                && let Some(done) = under_way.join_next().await
            {
                done??;
            }
            under_way.spawn(one(client.clone(), Arc::clone(variant)));
        }
        while let Some(done) = under_way.join_next().await {
            done??;
        }
        Ok(ready("done")?)
    })
}

/// One input that shuffles have, made before anything is measured.
struct Variant {
    job: Job,
    /// Of each input partition.
    frames: Vec<Vec<PackedRecords>>,
    expected: Tally,
}

impl Variant {
    fn new(job: Job) -> Got<Variant> {
        Ok(Variant { job, frames: frames(&job)?, expected: job.expected()? })
    }
}

async fn one(client: Client, variant: Arc<Variant>) -> Result<(), String> {
    let seed = variant.job.seed;
    whole(&client, &variant).await.map_err(|error| format!("a shuffle of seed {seed}: {error}"))
}

/// One shuffle: says the microseconds until the first record was taken, and until all was read.
async fn whole(client: &Client, variant: &Arc<Variant>) -> Result<(), String> {
    let job = variant.job;
    let begin = now();
    let shuffle = client.start(&options(&job)).await.map_err(|error| error.to_string())?;
    let (told, mut first) = tokio::sync::mpsc::channel::<Instant>(BUDGETS);
    let mut writing: JoinSet<Result<Written, Error>> = JoinSet::new();
    for partition in 0..job.inputs {
        let (client, variant, told) = (client.clone(), Arc::clone(variant), told.clone());
        writing.spawn(async move {
            let produce = |attempt| attempt_of(attempt, Arc::clone(&variant), told.clone());
            client.write(&shuffle, partition, produce).await
        });
    }
    drop(told);
    while let Some(done) = writing.join_next().await {
        done.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    }
    let first = first.recv().await.ok_or("no record was taken")? - begin;
    match client.seal(shuffle.id, 0..job.inputs).await.map_err(|error| error.to_string())? {
        Sealed::Whole { .. } => {}
        Sealed::Lacks(partitions) => return Err(format!("it lacks the input partitions {partitions:?}")),
    }
    let read = read_all(client, shuffle.id, job, false).await.map_err(|error| error.to_string())?;
    let whole = now() - begin;
    compare(read.tally, variant.expected).map_err(|error| error.to_string())?;
    client.delete(shuffle.id).await.map_err(|error| error.to_string())?;
    say(&format!("{} {}", first.as_micros(), whole.as_micros()));
    Ok(())
}

/// The frames of each input partition. The first one is of one record.
fn frames(job: &Job) -> Got<Vec<Vec<PackedRecords>>> {
    let generator = job.generator()?;
    let length = job.shape.record;
    let of_partition = |partition| {
        let numbers = job.numbers(partition);
        let mut bytes = vec![0; (numbers.end - numbers.start) as usize * length];
        generator.write_all(numbers.start, &mut bytes);
        let (one, rest) = bytes.split_at(length.min(bytes.len()));
        let pack = |records: &[u8]| {
            PackedRecords::pack(records.chunks_exact(length).map(|record| record.split_at(job.shape.key)))
        };
        let stride = (FRAME_BYTES / length).max(1) * length;
        [one].into_iter().chain(rest.chunks(stride)).map(pack).collect::<Vec<PackedRecords>>()
    };
    Ok((0..job.inputs).map(of_partition).collect())
}

async fn attempt_of(
    mut attempt: Attempt,
    variant: Arc<Variant>,
    first: tokio::sync::mpsc::Sender<Instant>,
) -> Result<Written, Error> {
    let of_partition =
        variant.frames.get(attempt.partition() as usize).map(Vec::as_slice).unwrap_or_default();
    for (number, frame) in of_partition.iter().enumerate() {
        attempt.put(frame.clone()).await?;
        if number == 0 {
            attempt.taken().await?;
            // Only the first of all counts; there is room for it.
            let _ = first.try_send(now());
        }
    }
    attempt.end().await
}
