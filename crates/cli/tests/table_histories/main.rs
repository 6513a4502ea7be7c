//! Histories of a table on real processes: clients read, write, swap and delete few rows through several nodes while leaders,
//! followers and the coordinator are killed and stopped, links between them are cut, leads move and shards split; what the
//! clients were told is linearizable, by our checker and by porcupine.
//!
//! ```text
//!  clients ── HTTP, RESP ──► nodes ◄── kill -9, SIGSTOP, transfer, split, merge
//!     │                        ╰── links.rs, held in one direction or both ──► other nodes, coordinator
//!     │
//!     ╰─► history, a line for each operation ──► checker.rs: versions in order, acknowledged is there, deleted stays away
//!                                           ╰──► porcupine/: a register with compare-and-set for each key
//! ```
//!
//! The files in `golden/` say for each kind of fault what both must refuse.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test of processes waits by the clock, and says what it has seen"
)]

mod checker;
mod clients;
#[path = "../table_cluster/mod.rs"]
mod cluster;
mod history;
mod links;
mod troubles;

use clients::{At, Recorder};
use cluster::tools::go_program;
use cluster::{Cluster, eventually};
use history::{Kind, Operation, Outcome};
use links::Links;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use troubles::{Trouble, Way};

const TABLE: &str = "stock";
const KEYS: usize = 6;
const CLIENTS: u64 = 8;
const LISTENS: &[&str] = &["--redis-listen", "127.0.0.1:0"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/table_histories").join(name)
}

/// Whether porcupine accepts the histories in these files: all of them, or none.
fn porcupine_accepts(files: &[PathBuf]) -> Result<(), String> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let program = BUILT.get_or_init(|| go_program(&folder("porcupine"), "table-porcupine"));
    let ended = Command::new(program).args(files).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    match ended.status.code() {
        Some(0) => Ok(()),
        Some(1) => Err(said),
        _ => panic!("porcupine did not judge: {said}{}", String::from_utf8_lossy(&ended.stderr)),
    }
}

/// A file that stays when the test fails.
fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("table-history-{name}.jsonl"))
}

/// Fails unless our checker and Porcupine accept the history.
#[track_caller]
fn holds(name: &str, history: &[Operation]) {
    let file = kept(name);
    history::write(&file, history);
    let findings = checker::findings(history);
    assert!(findings.is_empty(), "{}: {findings:#?}", file.display());
    porcupine_accepts(&[file]).unwrap();
}

/// Fails unless our checker and Porcupine refuse the history.
#[track_caller]
fn is_refused(name: &str, history: &[Operation]) {
    let file = kept(name);
    history::write(&file, history);
    assert!(!checker::findings(history).is_empty(), "the checker accepts {}", file.display());
    assert!(porcupine_accepts(&[file]).is_err(), "porcupine accepts {name}");
}

#[test]
fn both_checkers_refuse_what_is_planted_in_small_histories_and_nothing_else() {
    let files = cluster::files(&folder("golden"));
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let history = history::read(&file);
        match name.as_str() {
            "holds" => holds(&name, &history),
            _ => is_refused(&name, &history),
        }
    }
}

/// Two acknowledged writes of one key, the second begun after the first had ended, and reads that found the second.
fn overwritten(history: &[Operation], is_last: bool) -> (Operation, Operation, Vec<usize>) {
    let writes = |one: &&Operation| one.writes_a_row() && one.outcome == Outcome::Ok && one.version.is_some();
    for later in history.iter().filter(writes) {
        let reads = |(_, one): &(usize, &Operation)| one.kind == Kind::Get && one.found == later.value;
        let reads: Vec<usize> = history.iter().enumerate().filter(reads).map(|(at, _)| at).collect();
        let earlier = history.iter().filter(writes).find(|one| one.key == later.key && one.end < later.start);
        let is_late = reads.last().is_some_and(|at| history[*at].start > later.end);
        let last = history.iter().rfind(|one| one.key == later.key && one.kind == Kind::Get);
        let fits = !is_last || last.is_some_and(|last| last.found == later.value);
        if let (Some(earlier), true, true) = (earlier, is_late, fits) {
            return (earlier.clone(), later.clone(), reads);
        }
    }
    panic!("no row of this history was overwritten and read");
}

/// One read finds what was overwritten before it began.
fn with_a_stale_read(mut history: Vec<Operation>) -> Vec<Operation> {
    let (earlier, _, reads) = overwritten(&history, false);
    let read = &mut history[*reads.last().unwrap()];
    (read.found, read.version) = (earlier.value, read.version.and(earlier.version));
    history
}

/// The last reads no longer find a write that was acknowledged and that they had found.
fn with_a_lost_write(mut history: Vec<Operation>) -> Vec<Operation> {
    let (earlier, _, reads) = overwritten(&history, true);
    for at in reads {
        let read = &mut history[at];
        (read.found, read.version) = (earlier.value.clone(), read.version.and(earlier.version));
    }
    history
}

/// Clients work on keys of their own while `troubles` come one after the other; in the end each key is read through each node.
fn round((cluster, links): &mut (Cluster, Links), number: u64, troubles: &[Trouble]) -> Vec<Operation> {
    let nodes = cluster.nodes.iter().map(|node| At { http: node.address.clone(), resp: node.resp.clone() });
    let nodes: Vec<At> = nodes.collect();
    let keys: Vec<String> = (0..KEYS).map(|key| format!("k{key}-{number}")).collect();
    let recorder = Arc::new(Recorder::new(TABLE));
    let stop = Arc::new(AtomicBool::new(false));
    let clients = clients::start(&recorder, &nodes, &keys, (CLIENTS, number), &stop);
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for trouble in troubles {
            trouble.comes(cluster, links, &recorder);
        }
    }));
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    if let Err(why) = ended {
        history::write(&kept(&format!("broken-off-{number}")), &recorder.history());
        std::panic::resume_unwind(why);
    }
    for (client, at) in (CLIENTS..).zip(&nodes) {
        keys.iter().for_each(|key| recorder.read(at, key, client));
    }
    recorder.history()
}

/// Until it is dropped no other test of this program has processes: what clients see is to come from the troubles.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Three nodes, and the links that lead from each to the others and to the coordinator.
fn start() -> (Cluster, Links) {
    let mut cluster = Cluster::start(0);
    let links = Links::new(cluster.path("links"));
    for node in 0..3 {
        let folder = cluster.path(&Cluster::id(node));
        cluster.add_in(LISTENS, folder, links.environment(node));
    }
    // Where each listens is known now: whom they have connected to before does not count.
    links.lead_to(&[&cluster.addresses()[..], &[cluster.coordinator().to_owned()]].concat());
    (0..3).for_each(|node| cluster.nodes[node].process.kill());
    (0..3).for_each(|node| cluster.start_again(node));
    cluster.create(&[TABLE, "--sharding", "key-range"]);
    eventually("all have all", || troubles::are_whole(&cluster));
    (cluster, links)
}

/// How many operations ended how.
#[track_caller]
fn is_worth_judging(history: &[Operation]) {
    let count = |kind: Kind, outcome: Outcome| {
        history.iter().filter(|one| one.kind == kind && one.outcome == outcome).count()
    };
    for kind in [Kind::Get, Kind::Put, Kind::Delete, Kind::Swap, Kind::Create] {
        let counts = [Outcome::Ok, Outcome::NotMet, Outcome::Refused, Outcome::Unknown];
        let [ok, not_met, refused, unknown] = counts.map(|outcome| count(kind, outcome));
        println!("{kind:?}: {ok} ok, {not_met} not met, {refused} refused, {unknown} unknown");
        assert!(ok > 5, "too few of {kind:?}");
        assert!(not_met > 5 || !matches!(kind, Kind::Swap | Kind::Create), "too few of {kind:?} are not met");
    }
}

#[test]
fn d2_clients_are_told_what_is_linearizable_while_nodes_are_killed_and_stopped_and_a_shard_is_split() {
    let _alone = alone();
    let mut cluster = start();
    let troubles = [
        Trouble::Transfer,
        Trouble::StopLeader,
        Trouble::Reshape,
        Trouble::KillLeader,
        Trouble::StopFollower,
        Trouble::KillFollower,
    ];
    let history = round(&mut cluster, 0, &troubles);
    is_worth_judging(&history);
    holds("short", &history);
    is_refused("short-with-a-stale-read", &with_a_stale_read(history.clone()));
    is_refused("short-with-a-lost-write", &with_a_lost_write(history));
    cluster.0.nothing_differs(TABLE);
}

#[test]
fn d2_clients_are_told_what_is_linearizable_while_links_are_cut_and_the_coordinator_is_killed() {
    let _alone = alone();
    let mut cluster = start();
    let troubles = [
        Trouble::CutNodes(Way::There),
        Trouble::CutNodes(Way::Back),
        Trouble::CutNodes(Way::Both),
        Trouble::KillCoordinator,
        Trouble::CutOff(Way::There),
        Trouble::CutOff(Way::Back),
        Trouble::CutOff(Way::Both),
    ];
    let history = round(&mut cluster, 0, &troubles);
    is_worth_judging(&history);
    holds("cut", &history);
    assert!(cluster.1.held() > 0, "something was held on its way");
    cluster.0.nothing_differs(TABLE);
}

#[test]
#[ignore = "takes some minutes: `./test long`"]
fn d2_long_clients_are_told_what_is_linearizable_whatever_comes_one_after_the_other() {
    let _alone = alone();
    let mut cluster = start();
    for number in 1..=12 {
        let draws = cluster::noise(number, 6);
        let troubles: Vec<Trouble> = draws.into_iter().map(Trouble::drawn).collect();
        println!("round {number}: {troubles:?}");
        let history = round(&mut cluster, number, &troubles);
        is_worth_judging(&history);
        holds(&format!("long-{number}"), &history);
        cluster.0.nothing_differs(TABLE);
    }
}
