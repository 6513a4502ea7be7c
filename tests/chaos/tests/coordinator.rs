//! A coordinator that is killed at any moment, runs out of disk, finds its state damaged, or is started twice.
//! Nodes serve without it for as long as their leases run, and it comes back in time.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first surprise, and says what it skips"
)]

use backends::process::Process;
use chaos::admin::{Admin, bulky_keyspace, leader};
use chaos::cluster::Cluster;
use chaos::load::Load;
use chaos::until;
use partage_wire::json::{Answer, Command, Coordinators, Shard, Summary};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Numbers that only ever grow: epoch and highest placement of every shard.
fn marks(shards: &[Shard]) -> BTreeMap<u64, (u64, u64)> {
    let highest = |shard: &Shard| shard.replicas.iter().map(|replica| replica.placement).max().unwrap_or(0);
    shards.iter().map(|shard| (shard.shard, (shard.epoch, highest(shard)))).collect()
}

fn leaders(shards: &[Shard]) -> BTreeMap<u64, String> {
    shards.iter().filter_map(|shard| Some((shard.shard, leader(shard)?.to_owned()))).collect()
}

async fn move_shard(admin: &Admin, shard: u64, from: &str, to: &str) -> Result<Answer, String> {
    let (from, to) = (from.to_owned(), to.to_owned());
    admin.command(Command::MoveShard { keyspace: "kv".to_owned(), shard, from, to }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_killed_during_moves_goes_on_with_them_and_moves_nothing_else() {
    let mut cluster = Cluster::start(0).await;
    for id in ["n1", "n2", "n3"] {
        cluster.add_node(id, &["--load-ms", "150"]).await;
    }
    cluster.keyspace("kv", "exclusive", "suggested").await;
    let load = Load::start(&cluster.admin, "kv", true);
    load.rounds(2).await;
    let nodes = ["n1", "n2", "n3"];
    // Delays that fall before, into and after the loads, the switches and the unloads of the moves.
    for (round, delay_ms) in [0, 40, 120, 170, 230, 320].into_iter().enumerate() {
        let before = cluster.admin.shards("kv").await;
        let (mut expected, low) = (leaders(&before), marks(&before));
        for shard in before.iter().skip(round).step_by(4) {
            let from = leader(shard).unwrap().to_owned();
            let to = nodes[(nodes.iter().position(|node| *node == from).unwrap() + 1) % 3];
            move_shard(&cluster.admin, shard.shard, &from, to).await.unwrap();
            expected.insert(shard.shard, to.to_owned());
        }
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        cluster.coordinator().kill();
        cluster.start_coordinator().await;
        cluster.admin.settled().await;
        let after = cluster.admin.shards("kv").await;
        let high = marks(&after);
        assert_eq!(leaders(&after), expected, "killed after {delay_ms} ms");
        let went_back = |shard: &&u64| high[*shard].0 < low[*shard].0 || high[*shard].1 < low[*shard].1;
        assert_eq!(low.keys().find(went_back), None, "{low:?} then {high:?}");
        let stayed = |shard: &&u64| expected[*shard] == leaders(&before)[*shard];
        for shard in low.keys().filter(stayed) {
            assert_eq!(high[shard], low[shard], "s{shard} was not asked to move");
        }
    }
    load.rounds(2).await;
    let account = load.finish().await;
    assert_eq!(account.failed, 0, "{account:?}");
}

/// How a coordinator runs out of room, and gets it back.
enum Scarce {
    /// A small file system of its own is filled by something else; unmounted with its handle.
    Disk(TempDir),
    /// Its process may not make a file any larger. That needs no right, so it is tried everywhere.
    Files,
}

impl Scarce {
    /// None = this process may not mount.
    fn disk() -> Option<Scarce> {
        let dir = TempDir::new().unwrap();
        let options = c"size=6m,mode=0777";
        match mount("chaos", dir.path(), "tmpfs", MountFlags::empty(), options) {
            Ok(()) => Some(Scarce::Disk(dir)),
            Err(error) => {
                eprintln!("skipped: a full disk needs a small one, and mounting a tmpfs is refused: {error}");
                None
            }
        }
    }

    /// Where the coordinator's state is to be, if that matters.
    fn data_dir(&self) -> Option<PathBuf> {
        match self {
            Scarce::Disk(dir) => Some(dir.path().join("state")),
            Scarce::Files => None,
        }
    }

    /// No file of the coordinator can grow any more.
    fn use_up(&self, cluster: &mut Cluster) {
        match self {
            Scarce::Disk(dir) => {
                let mut file = std::fs::File::create(dir.path().join("ballast")).unwrap();
                let page = [1; 4096];
                while std::io::Write::write_all(&mut file, &page).is_ok() {}
            }
            Scarce::Files => {
                // What is written already may still be written over.
                let sizes = std::fs::read_dir(cluster.data_dir()).unwrap();
                let largest = sizes.map(|entry| entry.unwrap().metadata().unwrap().len()).max();
                cluster.coordinator().limit_files(largest);
            }
        }
    }

    fn make_room(&self, cluster: &mut Cluster) {
        match self {
            Scarce::Disk(dir) => std::fs::remove_file(dir.path().join("ballast")).unwrap(),
            Scarce::Files => cluster.coordinator().limit_files(None),
        }
    }
}

impl Drop for Scarce {
    fn drop(&mut self) {
        if let Scarce::Disk(dir) = self {
            // Somebody may still be in it when a test has failed: it goes when they have.
            let _ = unmount(dir.path(), UnmountFlags::DETACH);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_on_a_full_disk_the_last_map_is_served_and_leases_go_on_until_there_is_room() {
    let Some(disk) = Scarce::disk() else { return };
    the_last_map_is_served_and_leases_go_on_until_there_is_room(disk).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_when_no_file_can_grow_the_last_map_is_served_and_leases_go_on_until_one_can() {
    the_last_map_is_served_and_leases_go_on_until_there_is_room(Scarce::Files).await;
}

/// The term of the coordinator that leads.
async fn term(admin: &Admin) -> Result<u64, String> {
    let leaders: Coordinators = admin.try_get("/v1/coordinators").await?;
    leaders.coordinators[0].term.ok_or_else(|| format!("{leaders:?}"))
}

async fn the_last_map_is_served_and_leases_go_on_until_there_is_room(disk: Scarce) {
    let mut cluster = Cluster::start_in(disk.data_dir(), 3).await;
    cluster.keyspace("kv", "exclusive", "suggested").await;
    let load = Load::start(&cluster.admin, "kv", true);
    load.rounds(2).await;
    let before = marks(&cluster.admin.shards("kv").await);

    disk.use_up(&mut cluster);
    let mut refused = None;
    for number in 0..20 {
        if let Err(why) = cluster.admin.command(bulky_keyspace(&format!("bulky{number}"))).await {
            refused = Some(why);
            break;
        }
    }
    // Which disk, which directory, and that nothing was done.
    let refused = refused.expect("the disk is not full");
    let dir = cluster.data_dir().display().to_string();
    let says = ["not_stored", "nothing was changed", "is full", dir.as_str(), "make room"];
    assert_eq!(says.iter().find(|says| !refused.contains(**says)), None, "{refused}");
    // Questions are answered at every moment from now on, by a leader of the same term, which says what is wrong.
    let led = until("who leads", || term(&cluster.admin)).await;
    until("a leader says that its disk is full", || async {
        let status: Summary = cluster.admin.try_get("/v1/status").await?;
        if status.problems.iter().any(|problem| problem.what.contains(&dir)) {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    for _ in 0..100 {
        let status: Result<Summary, _> = cluster.admin.try_get("/v1/status").await;
        assert!(status.is_ok(), "{status:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let again = cluster.admin.command(bulky_keyspace("bulky98")).await.unwrap_err();
    assert!(again.contains("nothing was changed") && again.contains(&dir), "{again}");
    until("the log names the error", || async {
        let log = cluster.coordinator_log();
        if log.contains("is full") && log.contains("make room") { Ok(()) } else { Err(log) }
    })
    .await;
    // Longer than every lease, twice.
    tokio::time::sleep(Duration::from_secs(6)).await;
    load.rounds(2).await;
    let account = load.account();
    assert_eq!(account.failed, 0, "{account:?}");
    assert_eq!(account.epochs, load.account().epochs);
    for id in ["n1", "n2", "n3"] {
        let lapsed = cluster.node(id).process.log().contains("lapsed");
        assert!(!lapsed, "{id} has lost its lease: {}", cluster.node(id).process.log());
    }

    disk.make_room(&mut cluster);
    assert_eq!(until("who leads", || term(&cluster.admin)).await, led, "it led all along");
    until("commands are carried out again", || async {
        cluster.admin.command(bulky_keyspace("bulky99")).await
    })
    .await;
    assert_eq!(marks(&cluster.admin.shards("kv").await), before, "nothing has moved");
    load.rounds(2).await;
    let account = load.finish().await;
    assert_eq!(account.failed, 0, "{account:?}");
    cluster.coordinator().kill();
}

/// The newest journal of a data directory.
fn journal(data_dir: &Path) -> PathBuf {
    let files = std::fs::read_dir(data_dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.to_string_lossy().contains("journal-")).max().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_the_state_refuses_to_start_and_names_file_and_offset() {
    let mut cluster = Cluster::start(1).await;
    cluster.keyspace("kv", "exclusive", "suggested").await;
    cluster.coordinator().kill();

    let file = journal(cluster.data_dir());
    let mut bytes = std::fs::read(&file).unwrap();
    let written = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[written / 2] ^= 0x10;
    std::fs::write(&file, &bytes).unwrap();

    let log = cluster.path("damaged.log");
    let mut process = Process::start("coordinator", cluster.coordinator_command(), &log);
    let status = process.end().await;
    let told = process.log();
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.contains(&file.display().to_string()) && told.contains("damaged at byte"), "{told}");
    let offset: usize =
        told.split("damaged at byte ").nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
    assert!(offset <= written / 2 && written / 2 - offset < 1 << 20, "{offset}, not {}: {told}", written / 2);
    assert_eq!(std::fs::read(&file).unwrap(), bytes, "the damaged file is left as it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_coordinator_on_the_same_directory_is_refused() {
    let cluster = Cluster::start(1).await;
    cluster.keyspace("kv", "exclusive", "suggested").await;
    let command = cluster.coordinator_command_at(&cluster.address().replace(":7400", ":7401"));
    let mut second = Process::start("second", command, &cluster.path("second.log"));
    let status = second.end().await;
    let told = second.log();
    assert_eq!(status.code(), Some(1), "{told}");
    let dir = cluster.data_dir().display().to_string();
    assert!(told.contains(&dir) && told.contains("in use by another process"), "{told}");
    cluster.admin.settled().await;
}
