//! Random transactions against the simplest model there is, with reopening at random points.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::embedded::{Embedded, Options};
use crate::{Coordination, Error, Expected, Key, Operation, Scope, Transaction, Version};
use partage_journal::faulty_disk::FaultyDisk;

type Model = BTreeMap<Key, (Bytes, Version)>;

#[derive(Clone, Debug)]
enum Step {
    /// Conditions by key and kind, operations by key and size (none: delete).
    Commit(Vec<(u8, u8)>, BTreeMap<u8, Option<u16>>),
    Reopen,
    LosePower(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let conditions = vec((0..6_u8, 0..4_u8), 0..3);
    let operations = proptest::collection::btree_map(0..6_u8, proptest::option::of(0..1200_u16), 0..4);
    prop_oneof![
        12 => (conditions, operations).prop_map(|(conditions, operations)| Step::Commit(conditions, operations)),
        1 => Just(Step::Reopen),
        1 => any::<u64>().prop_map(Step::LosePower),
    ]
}

fn key(number: u8) -> Key {
    Key::new(["a", "a/b", "a/c", "b", "b/a/a", "c"][usize::from(number)]).unwrap()
}

/// The transaction that a step means for the model's present content.
fn transaction(
    model: &Model,
    conditions: &[(u8, u8)],
    operations: &BTreeMap<u8, Option<u16>>,
) -> Transaction {
    let mut transaction = Transaction::new();
    for (number, kind) in conditions {
        let key = key(*number);
        let now = model.get(&key).map(|(_, version)| *version);
        let expected = match (kind, now) {
            (0, _) => Expected::Absent,
            (1, _) => Expected::Present,
            (2, Some(version)) => Expected::At(version),
            (_, version) => Expected::At(Version::new(version.map_or(1, Version::get) + 1)),
        };
        transaction = transaction.when(&key, expected);
    }
    for (number, size) in operations {
        transaction = match size {
            Some(size) => transaction.put(&key(*number), vec![*number; usize::from(*size)]),
            None => transaction.delete(&key(*number)),
        };
    }
    transaction
}

async fn commit(store: &Embedded, model: &mut Model, transaction: Transaction) {
    let failing = transaction.conditions.iter().find(|condition| {
        let found = model.get(&condition.key).map(|(_, version)| *version);
        !match condition.expected {
            Expected::Absent => found.is_none(),
            Expected::Present => found.is_some(),
            Expected::At(version) => found == Some(version),
        }
    });
    let failing = failing.cloned();
    match (store.commit(transaction.clone()).await, failing) {
        (Ok(at), None) => {
            for operation in transaction.operations {
                match operation {
                    Operation::Put { key, value, .. } => model.insert(key, (value, at)),
                    Operation::Delete { key } => model.remove(&key),
                };
            }
        }
        (Err(Error::Refused { key, .. }), Some(condition)) => assert_eq!(key, condition.key),
        (outcome, failing) => panic!("{outcome:?}, but the model says {failing:?}"),
    }
}

async fn run(steps: Vec<Step>) {
    let disk = FaultyDisk::default();
    let options =
        Options { step_bytes: 512, compact_bytes: 2048, disk: Arc::new(disk.clone()), ..Options::default() };
    let open = async || Embedded::open(Path::new("/d"), options.clone()).await.unwrap();
    let (mut store, mut model, mut last) = (open().await, Model::new(), Version::ZERO);
    for step in steps {
        match step {
            Step::Commit(conditions, operations) => {
                let transaction = transaction(&model, &conditions, &operations);
                commit(&store, &mut model, transaction).await;
            }
            Step::Reopen => {
                store.close().await;
                store = open().await;
            }
            Step::LosePower(seed) => {
                store.close().await;
                let mut state = seed | 1;
                disk.lose_power(|| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state >> 40 & 1 == 1
                });
                store = open().await;
            }
        }
        let listing = store.list(&Scope::All, None, 100).await.unwrap();
        assert!(listing.at >= last, "the version went back");
        last = listing.at;
        let found: Model =
            listing.entries.into_iter().map(|(key, entry)| (key, (entry.value, entry.version))).collect();
        assert_eq!(found, model);
    }
    store.close().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_is_the_model(steps in vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(run(steps));
    }
}
