//! `kill -9` at twenty moments: nothing that was acknowledged is lost, and nothing else appears.
//!
//! The child is this same test binary. It commits from several tasks, prints each acknowledged number,
//! and is killed in the middle; the parent reads what was printed, opens the store, and compares.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use partage_coordination::embedded::{Embedded, Options};
use partage_coordination::{Coordination, Key, Scope, Transaction};

const DIR: &str = "PARTAGE_CRASH_TEST_DIR";
const TASKS: usize = 4;
const KILLS: u64 = 20;

async fn open(dir: &Path) -> Arc<Embedded> {
    // Small steps, so that the kills also fall into extensions and compactions.
    let options = Options { step_bytes: 4096, compact_bytes: 32 << 10, ..Options::default() };
    Embedded::open(dir, options).await.unwrap()
}

fn key(task: usize, part: &str) -> Key {
    Key::new(format!("task/{task}/{part}")).unwrap()
}

async fn number_at(store: &Embedded, key: &Key) -> u64 {
    let entry = store.read(key).await.unwrap();
    entry.map_or(0, |entry| u64::from_be_bytes(entry.value[..8].try_into().unwrap()))
}

/// Two keys per transaction, so that a half-done one would show.
fn both(task: usize, number: u64) -> Transaction {
    let mut value = number.to_be_bytes().to_vec();
    value.resize(8 + (number as usize * 131) % 3000, 0xab);
    Transaction::new().put(&key(task, "a"), value.clone()).put(&key(task, "b"), value)
}

#[test]
#[ignore = "only as the child of the test below"]
#[expect(clippy::disallowed_methods, reason = "how the parent tells its child where")]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let store = open(Path::new(&dir)).await;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                let start = number_at(&store, &key(task, "a")).await;
                for number in start + 1.. {
                    store.commit(both(task, number)).await.unwrap();
                    println!("acknowledged {task} {number}");
                }
            });
        }
        tasks.join_all().await;
    });
}

/// Runs a child, kills it `after` it has begun to acknowledge, and returns the last numbers it printed.
fn run_and_kill(dir: &Path, after: Duration, acknowledged: &mut [u64; TASKS]) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut count = 0;
    let mut killer = None;
    while let Some(Ok(line)) = lines.next() {
        // The first one stands behind what the harness of the child has begun to say.
        let Some((_, told)) = line.split_once("acknowledged ") else { continue };
        let Some((task, number)) = told.split_once(' ') else { continue };
        // The very last line may have been cut by the kill.
        let (Ok(task), Ok(number)) = (task.parse::<usize>(), number.parse::<u64>()) else { continue };
        acknowledged[task] = acknowledged[task].max(number);
        count += 1;
        if killer.is_none() {
            let pid = child.id().to_string();
            killer = Some(std::thread::spawn(move || {
                std::thread::park_timeout(after);
                Command::new("kill").args(["-9", &pid]).status().unwrap()
            }));
        }
    }
    assert!(killer.expect("the child acknowledged something").join().unwrap().success());
    assert!(!child.wait().unwrap().success(), "the child was killed, it did not end");
    count
}

#[test]
fn twenty_kills_lose_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let (mut acknowledged, mut total) = ([0; TASKS], 0);
    for kill in 0..KILLS {
        let after = Duration::from_micros(3_000 + (kill * 7_919) % 90 * 1_000 + kill * 137 % 1_000);
        total += run_and_kill(dir.path(), after, &mut acknowledged);
        runtime.block_on(async {
            let store = open(dir.path()).await;
            for (task, acknowledged) in acknowledged.iter_mut().enumerate() {
                let found = number_at(&store, &key(task, "a")).await;
                assert_eq!(
                    found,
                    number_at(&store, &key(task, "b")).await,
                    "kill {kill}: half a transaction"
                );
                let most = *acknowledged + 1;
                assert!(
                    (*acknowledged..=most).contains(&found),
                    "kill {kill}: task {task} had {acknowledged} acknowledged, found {found}"
                );
                *acknowledged = found;
            }
            let keys = store.list(&Scope::All, None, 100).await.unwrap().entries.len();
            assert!(keys <= 2 * TASKS);
            store.close().await;
        });
    }
    assert!(total > KILLS * 10, "only {total} commits in {KILLS} lives: this shows nothing");
    println!("{total} acknowledged over {KILLS} kills, none lost");
}
