//! Records of equal keys become one within an attempt, and never across attempts.

use crate::nodes::Cluster;
use bytes::Bytes;
use partage_service::shuffle::Terms;
use partage_service::shuffle::combine::{Combine, Total};
use partage_service::shuffle::partition::CutBy;
use partage_service::shuffle::plan::Placed;
use partage_service::shuffle::record::Record;
use partage_shuffle::node::client::{Sealed, Shuffle};
use std::collections::{BTreeMap, BTreeSet};

const INPUTS: u32 = 4;
const FRAMES: i64 = 5;
/// Records of a frame, and how many keys they have.
const RECORDS: i64 = 200;
const KEYS: i64 = 10;

/// An attempt all of whose values are that one.
fn write(cluster: &Cluster, shuffle: Shuffle, partition: u32, (node, value): (usize, i64)) {
    let mut put = cluster.client(node).open(shuffle, partition).unwrap();
    for _ in 0..FRAMES {
        let record = |at: i64| Record {
            key: [(at % KEYS) as u8].as_slice().into(),
            value: value.to_le_bytes().as_slice().into(),
        };
        put.put((0..RECORDS).map(record).collect::<Vec<Record>>().into()).unwrap();
    }
    put.end().unwrap();
}

#[test]
fn d6_each_key_has_what_the_attempts_that_are_read_have_of_it() {
    let cluster = Cluster::start();
    let terms = Terms { combine: Some(Combine::SumI64), ..Terms::new(30, 48) };
    let shuffle = cluster.client(0).start(terms).unwrap();
    assert_eq!(shuffle.terms.combine, terms.combine);
    // Of each partition two attempts are whole, and one is read; both are at one node for half of them.
    for partition in 0..INPUTS {
        write(&cluster, shuffle, partition, (0, 1));
        write(&cluster, shuffle, partition, (partition as usize % 2, 1_001));
    }
    let sealed = cluster.client(1).seal(shuffle.id, (0..INPUTS).collect()).unwrap();
    let Sealed::Plan(plan) = sealed else { panic!("{sealed:?}") };
    let most = (KEYS * FRAMES) as u64;
    for winner in plan.winners.values() {
        assert!(winner.records <= most, "{} records of {KEYS} keys are stored", winner.records);
        assert_eq!(winner.bytes, 9 * winner.records);
    }
    let mut totals: BTreeMap<(u32, Bytes), Total> = BTreeMap::new();
    let mut seen: BTreeSet<Bytes> = BTreeSet::new();
    for i in 0..3 {
        let pieces = cluster.client(2).read_by(&plan, i, 3, CutBy::Keys);
        let records: Vec<Placed> =
            pieces.flat_map(|piece| piece.unwrap().placed().collect::<Vec<_>>()).collect();
        let keys: BTreeSet<Bytes> = records.iter().map(|one| one.key.clone()).collect();
        assert!(seen.is_disjoint(&keys), "a key is in one partition");
        seen.extend(keys);
        for Placed { key, partition, value, .. } in records {
            match totals.get_mut(&(partition, key.clone())) {
                Some(total) => total.add(&value).unwrap(),
                None => drop(totals.insert((partition, key), Total::new(Combine::SumI64, &value).unwrap())),
            }
        }
    }
    assert_eq!(totals.len() as i64, i64::from(INPUTS) * KEYS);
    let each = FRAMES * RECORDS / KEYS;
    for partition in 0..INPUTS {
        let of = totals.iter().filter(|((of, _), _)| *of == partition);
        let sums: BTreeSet<i64> = of.map(|(_, total)| i64::from_le_bytes(total.value().unwrap())).collect();
        let is_one = sums == [each].into() || sums == [each * 1_001].into();
        assert!(is_one, "partition {partition} has {sums:?} of its keys");
    }
    cluster.client(0).delete(shuffle.id).unwrap();
    cluster.has_nothing();
}
