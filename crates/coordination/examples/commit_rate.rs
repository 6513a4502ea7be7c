//! How fast a backend commits, alone and with many at once.
//!
//! `cargo run --release -p partage-coordination --example commit_rate -- DIR` measures the embedded one: DIR is
//! created, and its disk is what counts; beside each figure stands the same disk's bare write and fdatasync of 512
//! bytes. With `--features mysql`, `-- mysql://user@host/database/root` measures that server; the user has no password.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example is a program: it has arguments, prints, and measures with the real clock"
)]

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use partage_coordination::embedded::{Embedded, Options};
use partage_coordination::{Coordination, Error, Key, Target, Transaction, connect};

const VALUE_BYTES: usize = 200;
const EACH: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = std::env::args().nth(1).ok_or("name a directory, or the address of a backend")?;
    if place.contains("://") {
        return measure(&connect(&Target::parse(&place)?).await?).await;
    }
    std::fs::create_dir_all(&place)?;
    report("bare write + fdatasync, 512 bytes", bare(&place)?);
    let store = Embedded::open(&place, Options::default()).await?;
    let opened: Arc<dyn Coordination> = Arc::clone(&store) as _;
    measure(&opened).await?;
    store.close().await;
    Ok(())
}

async fn measure(store: &Arc<dyn Coordination>) -> Result<(), Box<dyn std::error::Error>> {
    for tasks in [1, 8, 64, 256] {
        report(&format!("commit of {VALUE_BYTES} bytes, {tasks} at once"), commits(store, tasks).await?);
    }
    Ok(())
}

fn report(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    let rate = took.len() as f64 / EACH.as_secs_f64();
    println!("{what}: {rate:.0}/s, p50 {:?}, p99 {:?}", at(0.5), at(0.99));
}

fn bare(dir: &str) -> std::io::Result<Vec<Duration>> {
    let path = std::path::Path::new(dir).join("bare");
    let mut file = std::fs::File::create(&path)?;
    file.write_all(&vec![0; 64 << 20])?;
    file.sync_all()?;
    let (start, mut took) = (Instant::now(), Vec::new());
    while start.elapsed() < EACH {
        let before = Instant::now();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 512], (took.len() as u64 * 512) % (63 << 20))?;
        file.sync_data()?;
        took.push(before.elapsed());
    }
    std::fs::remove_file(path)?;
    Ok(took)
}

async fn commits(store: &Arc<dyn Coordination>, tasks: usize) -> Result<Vec<Duration>, Error> {
    let mut running = tokio::task::JoinSet::new();
    let start = Instant::now();
    for task in 0..tasks {
        let (store, key) = (Arc::clone(store), Key::new(format!("rate/{task}"))?);
        running.spawn(async move {
            let mut took = Vec::new();
            while start.elapsed() < EACH {
                let before = Instant::now();
                store.commit(Transaction::new().put(&key, vec![7; VALUE_BYTES])).await?;
                took.push(before.elapsed());
            }
            Ok::<_, Error>(took)
        });
    }
    let mut all = Vec::new();
    for took in running.join_all().await {
        all.extend(took?);
    }
    Ok(all)
}
