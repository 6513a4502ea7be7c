//! Three coordinators on each real engine, struck in every way, under load: no client notices.

use chaos::trial::{Trial, undergo};
use partage_coordination::Backend;

/// Workers where the machine has little time.
const FEW: usize = 4;

/// Workers as in the requirement.
const MANY: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd_nobody_notices() {
    undergo(Backend::Etcd, FEW, &[Trial::Kill, Trial::Pause, Trial::StandbyPause, Trial::Cut, Trial::Stop])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_nobody_notices() {
    undergo(Backend::MySql, FEW, &[Trial::Kill, Trial::Stop, Trial::Restart]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper_nobody_notices() {
    undergo(Backend::ZooKeeper, FEW, &[Trial::Kill, Trial::Stop, Trial::Expire]).await;
}

/// D16: the key of the election is deleted again and again, under load: never two owners, and nothing moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_on_etcd_the_election_key_is_deleted_and_nobody_notices() {
    undergo(Backend::Etcd, FEW, &[Trial::Depose; 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_on_mysql_the_election_key_is_deleted_and_nobody_notices() {
    undergo(Backend::MySql, FEW, &[Trial::Depose; 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_on_zookeeper_the_election_key_is_deleted_and_nobody_notices() {
    undergo(Backend::ZooKeeper, FEW, &[Trial::Depose; 3]).await;
}

/// D19: whichever coordinator hangs, the workers' attempts fit their leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn on_etcd_a_leader_is_paused_for_ten_seconds_fifty_times() {
    undergo(Backend::Etcd, FEW, &[Trial::LongPause; 50]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn on_mysql_a_leader_is_paused_for_ten_seconds_fifty_times() {
    undergo(Backend::MySql, FEW, &[Trial::LongPause; 50]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn on_zookeeper_a_leader_is_paused_for_ten_seconds_fifty_times() {
    undergo(Backend::ZooKeeper, FEW, &[Trial::LongPause; 50]).await;
}

/// D19: exclusive shards wait, nothing moves, and all serve again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn on_etcd_the_engine_is_gone_for_a_while_three_times() {
    undergo(Backend::Etcd, FEW, &[Trial::Gone; 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn on_mysql_the_engine_is_gone_for_a_while_three_times() {
    undergo(Backend::MySql, FEW, &[Trial::Gone; 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn on_zookeeper_the_engine_is_gone_for_a_while_three_times() {
    undergo(Backend::ZooKeeper, FEW, &[Trial::Gone; 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn all_of_it_on_etcd_with_twenty_workers() {
    undergo(Backend::Etcd, MANY, &Trial::ALL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn all_of_it_on_mysql_with_twenty_workers() {
    undergo(Backend::MySql, MANY, &Trial::ALL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn all_of_it_on_zookeeper_with_twenty_workers() {
    undergo(Backend::ZooKeeper, MANY, &Trial::ALL).await;
}
