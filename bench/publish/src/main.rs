//! `bench-publish` measures how long a map change takes to reach every subscriber, and what it costs: see the
//! README.

mod crowd;

use bench_gauge::{Admin, CoreTime, Durations, complain, memory_bytes, now, option, say};
use crowd::Crowd;
use partage_coordinator::{Backing, Config, Coordinator};
use partage_wire::json::{Command, Keyspace, Presplit, Sharding};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// The keyspace whose map changes.
const KEYSPACE: &str = "measured";
/// Partitions that it has before anything is measured.
const PARTITIONS: u64 = 10_000;
/// Subscribers on one connection, where they share one.
const STREAMS: u64 = 100;

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "a program of its own, which reads its command line")]
    let words: Vec<String> = std::env::args().collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Threads of that name, so that their time on a core can be told apart.
fn runtime(name: &str) -> Result<Runtime, String> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).thread_name(name).enable_all().build().map_err(|error| error.to_string())
}

fn run(words: &[String]) -> Result<(), String> {
    let rounds = option(words, "--changes", 20);
    let (home, field) = (runtime("coordinator")?, runtime("subscribers")?);
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config { backing: Backing::Directory(dir.path().to_owned()), ..Config::new(listen) };
    let coordinator = home.block_on(home.spawn(Coordinator::start(config)));
    let coordinator = coordinator.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let address = coordinator.address();
    let done = field.block_on(field.spawn(async move {
        let admin = Admin::new(address);
        create(&admin).await?;
        measure(&admin, address, (1_000, 1_000), rounds).await?;
        measure(&admin, address, (10_000, 10_000 / STREAMS), rounds).await
    }));
    home.block_on(coordinator.stop());
    done.map_err(|error| error.to_string())?
}

async fn create(admin: &Admin) -> Result<(), String> {
    let keyspace = Keyspace { replicas: Some(1), ..Keyspace::new(KEYSPACE, Sharding::Named {}) };
    let names = (0..PARTITIONS).map(|number| format!("partition-{number:06}")).collect();
    admin
        .command(Command::CreateKeyspace { keyspace, presplit: Presplit::Names { names }, ahead: false })
        .await
}

/// Changes of 1, 10 and 100 partitions, `rounds` times each, one after another.
async fn measure(
    admin: &Admin,
    coordinator: SocketAddr,
    (subscribers, connections): (u64, u64),
    rounds: u64,
) -> Result<(), String> {
    let crowd = Crowd::gather(coordinator, KEYSPACE, subscribers, connections).await?;
    say(&format!(
        "{subscribers} subscribers on {connections} connections, a map of {PARTITIONS} partitions, resident \
         {} MiB for coordinator and subscribers",
        memory_bytes("VmRSS") >> 20
    ));
    for size in [1, 10, 100] {
        let mut arrivals = Durations::default();
        let mut commands = Durations::default();
        let bytes_before = crowd.bytes();
        let before = CoreTime::now();
        for round in 0..rounds {
            let name = |number: u64| format!("added-{subscribers}-{size}-{round}-{number}");
            let partitions: Vec<String> = (0..size).map(name).collect();
            let keyspace = KEYSPACE.to_owned();
            let add = Command::RegisterPartitions { keyspace, partitions, replicas: None, ahead: false };
            let begin = now();
            admin.command(add).await?;
            commands.push(now().duration_since(begin));
            for arrived in crowd.next_change(Duration::from_secs(60)).await? {
                arrivals.push(arrived.saturating_duration_since(begin));
            }
        }
        let after = CoreTime::now();
        let changes = (rounds * subscribers) as f64;
        say(&format!(
            "  {size} of {PARTITIONS} changed: at the subscribers after {}; {:.0} bytes for each; \
             core-microseconds for each: coordinator {:.1}, subscriber {:.1}; command answered p50 {:.1} ms",
            arrivals.line(),
            (crowd.bytes() - bytes_before) as f64 / changes,
            after.since(&before, "coordinator") * 1e6 / changes,
            after.since(&before, "subscribers") * 1e6 / changes,
            commands.quantile_ms(0.5),
        ));
    }
    Ok(())
}
