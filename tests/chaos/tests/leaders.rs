//! Three coordinators on each real engine, struck in every way, under load: nobody notices.

use chaos::trial::{Trial, undergo};
use partage_coordination::Backend;

/// Workers where the machine has little time.
const FEW: usize = 4;

/// Workers as in the requirement.
const MANY: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd_nobody_notices() {
    undergo(Backend::Etcd, FEW, &[Trial::Kill, Trial::Pause, Trial::Cut, Trial::Stop]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_nobody_notices() {
    undergo(Backend::MySql, FEW, &[Trial::Kill, Trial::Stop, Trial::Restart]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper_nobody_notices() {
    undergo(Backend::ZooKeeper, FEW, &[Trial::Kill, Trial::Stop, Trial::Expire]).await;
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
