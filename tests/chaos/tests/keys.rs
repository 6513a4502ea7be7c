//! D20: each key of the coordination state of a running cluster is deleted, set back and replaced, under load: never two
//! owners, nothing dropped, nothing lost; refused or healed, and told.

use chaos::tamper::{Fault, tamper};
use partage_coordination::Backend;

/// Each kind of key, and each fault, on one engine or another: all of it is below.
fn some(few: &'static [(&'static str, Fault)]) -> impl Fn(&str, Fault) -> bool {
    move |key, fault| few.contains(&(key, fault))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn o1_d10_every_key_on_etcd() {
    tamper(Backend::Etcd, |_, _| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn o1_d10_every_key_on_mysql() {
    tamper(Backend::MySql, |_, _| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn o1_d10_every_key_on_zookeeper() {
    tamper(Backend::ZooKeeper, |_, _| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_d10_a_key_of_each_kind_on_etcd() {
    const FEW: [(&str, Fault); 6] = [
        ("coordinators/c2", Fault::Deleted),
        ("election/leader", Fault::Garbage),
        ("election/term", Fault::SetBack),
        ("keyspaces/exclusive/map/metadata", Fault::Deleted),
        ("nodes/n1", Fault::SetBack),
        ("plans/1", Fault::Deleted),
    ];
    tamper(Backend::Etcd, some(&FEW)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_d10_a_key_of_each_kind_on_mysql() {
    const FEW: [(&str, Fault); 7] = [
        ("cluster", Fault::SetBack),
        ("coordinators/c1", Fault::Garbage),
        ("election/commit", Fault::Deleted),
        ("election/leader", Fault::OfAnotherKey),
        ("keyspaces/eventual/record", Fault::Garbage),
        ("keyspaces/exclusive/map/head", Fault::Deleted),
        ("plans/1", Fault::Garbage),
    ];
    tamper(Backend::MySql, some(&FEW)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_d10_a_key_of_each_kind_on_zookeeper() {
    const FEW: [(&str, Fault); 6] = [
        ("about", Fault::Deleted),
        ("coordinators/c3", Fault::OfAnotherKey),
        ("election/term", Fault::Garbage),
        ("keyspaces/eventual/map/metadata", Fault::SetBack),
        ("manifest", Fault::Deleted),
        ("nodes/n2", Fault::OfAnotherKey),
    ];
    tamper(Backend::ZooKeeper, some(&FEW)).await;
}
