//! What must hold, judged by what no node of the simulation sees: what each attempt was given, and what lies on all disks.

use super::node::Node;
use super::objects::ObjectStore;
use crate::draw::Draw;
use partage_service::shuffle::buffer::Attempt;
use partage_service::shuffle::combine::{Combine, Total, TotalTooLarge};
use partage_service::shuffle::partition::CutBy;
use partage_service::shuffle::plan::{Placed, Plan};
use partage_service::shuffle::record::{Batch, BatchKey, Body, EndMark, Record, Stream};
use partage_service::shuffle::{AttemptId, PoolSlot, ShuffleId, Writer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The input of a shuffle.
#[derive(Debug)]
pub struct Given {
    partitions: Vec<Vec<Vec<u8>>>,
    /// Records of a frame; none: any number.
    frame: Option<usize>,
}

impl Given {
    /// Keys of each partition: random, in order, all equal, or a few of them heavy.
    pub fn drawn(partitions: u32, draw: &mut Draw) -> Given {
        let (kind, most) = (draw.between(0, 4), draw.between(1, 80));
        let keys = (0..partitions).map(|partition| {
            let count = draw.between(0, most);
            (0..count).map(|i| key(kind, partition, i, draw)).collect()
        });
        Given { partitions: keys.collect(), frame: None }
    }

    /// So many partitions of so many records with random keys, and so many records in a frame.
    pub fn even(partitions: u32, (records, frame): (u64, usize), draw: &mut Draw) -> Given {
        let keys = (0..partitions).map(|_| {
            let keys = (0..records).map(|_| draw.bits().to_be_bytes().to_vec());
            keys.collect()
        });
        Given { partitions: keys.collect(), frame: Some(frame) }
    }

    /// An attempt of a partition, in frames. The values say which attempt they are of, and where they stand in it; they have up
    /// to eight bytes more, so that records of one key differ in size. Those of a shuffle that combines are numbers.
    pub fn frames(
        &self,
        partition: u32,
        id: AttemptId,
        combine: Option<Combine>,
        draw: &mut Draw,
    ) -> Vec<Vec<Record>> {
        let keys = self.partitions.get(partition as usize).map_or(&[][..], |keys| keys);
        let value = |place: usize| match combine {
            Some(how) => number(how, id, place).to_vec(),
            None => {
                [&id.0.to_be_bytes()[..], &(place as u64).to_be_bytes(), &[0; 8][..place * 5 % 9]].concat()
            }
        };
        let record = |(place, key): (usize, &Vec<u8>)| Record {
            key: key.as_slice().into(),
            value: value(place).into(),
        };
        let records: Vec<Record> = keys.iter().enumerate().map(record).collect();
        let size = self.frame.unwrap_or_else(|| draw.between(1, 12) as usize);
        records.chunks(size).map(<[Record]>::to_vec).collect()
    }
}

/// A number of which no other attempt has the like. Sums of them fit, and those of floats are exact.
fn number(how: Combine, id: AttemptId, place: usize) -> [u8; 8] {
    let number = (id.0 as u64 ^ (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 20;
    let number = number as i64 - (1 << 43);
    match how {
        Combine::SumF64 | Combine::MinF64 | Combine::MaxF64 => (number as f64).to_le_bytes(),
        _ => number.to_le_bytes(),
    }
}

fn key(kind: u64, partition: u32, i: u64, draw: &mut Draw) -> Vec<u8> {
    match kind {
        0 => draw.bits().to_be_bytes()[..draw.between(0, 4) as usize].to_vec(),
        1 => (i * 8 + u64::from(partition)).to_be_bytes().to_vec(),
        2 => b"one".to_vec(),
        _ if draw.chance(600) => b"heavy".to_vec(),
        _ => vec![draw.index(200) as u8],
    }
}

pub fn records_of(frames: &[Vec<Record>]) -> Vec<Record> {
    frames.iter().flatten().cloned().collect()
}

#[derive(Debug, Default)]
pub struct Oracle {
    attempts: BTreeMap<Attempt, Vec<Record>>,
    /// Those whose clients have said that they end: no other may be read.
    whole: BTreeSet<Attempt>,
    /// What a client was told to be on R disks.
    acknowledged: BTreeSet<BatchKey>,
    /// The nodes of which a copy went with the disk or the power, or was damaged.
    lost: BTreeMap<BatchKey, BTreeSet<usize>>,
    /// Up to which batch the end marks that were ever written need each stream.
    marked: BTreeMap<Stream, u64>,
    /// Shuffles of durability `memory`, and those of them that have failed.
    in_memory: BTreeSet<ShuffleId>,
    failed: BTreeSet<ShuffleId>,
    plans: BTreeMap<ShuffleId, Arc<Plan>>,
    outputs: BTreeMap<ShuffleId, Vec<Placed>>,
    ended: BTreeSet<ShuffleId>,
}

impl Oracle {
    /// Of these shuffles an attempt is acknowledged in the memory of machines.
    pub fn new(in_memory: BTreeSet<ShuffleId>) -> Oracle {
        Oracle { in_memory, ..Oracle::default() }
    }

    pub fn opens(&mut self, attempt: Attempt, records: Vec<Record>) {
        self.attempts.insert(attempt, records);
    }

    pub fn ends(&mut self, attempt: Attempt) {
        self.whole.insert(attempt);
    }

    /// No client wants the shuffle any more.
    pub fn ended(&mut self, shuffle: ShuffleId) {
        self.ended.insert(shuffle);
    }

    /// Whether that is so.
    pub fn has_ended(&self, shuffle: ShuffleId) -> bool {
        self.ended.contains(&shuffle)
    }

    /// A node loses its copy.
    pub fn loses(&mut self, node: usize, key: BatchKey) {
        self.lost.entry(key).or_default().insert(node);
    }

    /// A node writes a batch.
    pub fn written(&mut self, batch: &Batch) {
        let Body::Mark(mark) = &batch.body else { return };
        for (slot, last) in &mark.last {
            let writer = Writer::Buffer(mark.attempt.buffer.clone());
            let stream = Stream { shuffle: batch.key.stream.shuffle, slot: *slot, writer };
            let upto = self.marked.entry(stream).or_default();
            *upto = (*upto).max(*last);
        }
    }

    /// A client hears that its attempt is stored (X6).
    pub fn acknowledged(
        &mut self,
        attempt: Attempt,
        home: PoolSlot,
        (nodes, replicas): (&[Node], usize),
    ) -> Result<(), String> {
        if self.ended.contains(&attempt.shuffle) || self.plans.contains_key(&attempt.shuffle) {
            return Ok(());
        }
        let batches = nodes.iter().flat_map(|node| &node.disk.batches);
        let marks = batches.filter_map(|batch| match &batch.body {
            Body::Mark(mark) if mark.id == attempt.id && batch.key.stream.shuffle == attempt.shuffle => {
                Some((batch.key.clone(), mark.clone()))
            }
            _ => None,
        });
        let marks: Vec<(BatchKey, EndMark)> = marks.collect();
        let Some((key, mark)) = marks.first() else {
            // Any batch of that slot may have been the mark.
            if self.is_lost(attempt.shuffle, (nodes, replicas), |key| key.stream.slot == home) {
                return Ok(());
            }
            return Err(format!("X6: {attempt:?} is acknowledged, and its mark is on no disk"));
        };
        let writer = Writer::Buffer(mark.attempt.buffer.clone());
        let shuffle = attempt.shuffle;
        let needed = mark.last.iter().flat_map(|(slot, last)| {
            let stream = Stream { shuffle, slot: *slot, writer: writer.clone() };
            (1..=*last).map(move |number| BatchKey { stream: stream.clone(), number })
        });
        let needed: Vec<BatchKey> = needed.chain([key.clone()]).collect();
        for key in &needed {
            let copies = self.copies(key, nodes);
            if copies < replicas {
                return Err(format!("X6: {attempt:?} is acknowledged, and {key:?} has {copies} copies"));
            }
        }
        self.acknowledged.extend(needed);
        Ok(())
    }

    fn copies(&self, key: &BatchKey, nodes: &[Node]) -> usize {
        let is_here = |node: &Node| match self.in_memory.contains(&key.stream.shuffle) {
            true => node.disk.has_intact(key),
            false => node.disk.has_synced(key),
        };
        nodes.iter().enumerate().filter(|(at, node)| is_here(node) || self.has_lost(*at, key)).count()
    }

    fn has_lost(&self, node: usize, key: &BatchKey) -> bool {
        self.lost.get(key).is_some_and(|nodes| nodes.contains(&node))
    }

    /// Nodes that have no copy of a batch, and a receipt for its slot whose objects are there, and receipts that were lost.
    fn receipts(&self, key: &BatchKey, nodes: &[Node], objects: &ObjectStore) -> usize {
        let is_receipt = |other: &BatchKey| {
            let (own, other) = (&key.stream, &other.stream);
            other.writer.is_objects() && (other.shuffle, other.slot) == (own.shuffle, own.slot)
        };
        let lost = self.lost.iter().filter(|(other, _)| is_receipt(other));
        let lost: BTreeSet<usize> = lost.flat_map(|(_, nodes)| nodes.iter().copied()).collect();
        let has_receipt = |at: usize, node: &Node| {
            let mut keys = node.disk.batches.iter().map(|batch| &batch.key).filter(|other| is_receipt(other));
            lost.contains(&at)
                || keys.any(|receipt| node.disk.has_synced(receipt) && objects.has_put(&receipt.stream))
        };
        let has_copy = |at: usize, node: &Node| node.disk.has_intact(key) || self.has_lost(at, key);
        let nodes = nodes.iter().enumerate();
        nodes.filter(|(at, node)| !has_copy(*at, node) && has_receipt(*at, node)).count()
    }

    /// A node has dropped what it had (X12, D7).
    pub fn dropped(
        &self,
        keys: &[BatchKey],
        (nodes, replicas): (&[Node], usize),
        objects: &ObjectStore,
    ) -> Result<(), String> {
        let needed = keys.iter().filter(|key| self.acknowledged.contains(key));
        for key in needed.filter(|key| !self.ended.contains(&key.stream.shuffle)) {
            let copies = self.copies(key, nodes) + self.receipts(key, nodes, objects);
            if copies < replicas {
                let lost = self.lost.get(key).map_or(0, BTreeSet::len);
                let has =
                    nodes.iter().filter(|node| node.disk.has_intact(key)).map(|node| node.name.to_string());
                let has: Vec<String> = has.collect();

                return Err(format!("X12: {key:?} is dropped; {has:?} have it, and {lost} copies were lost"));
            }
        }
        Ok(())
    }

    /// A node drops its copies for a receipt that is on its own disk (D6).
    pub fn copies_dropped(
        &self,
        (shuffle, slot): (ShuffleId, PoolSlot),
        node: &Node,
        objects: &ObjectStore,
    ) -> Result<(), String> {
        let of_part = node.disk.batches.iter().map(|batch| &batch.key.stream);
        let mut of_part = of_part.filter(|stream| (stream.shuffle, stream.slot) == (shuffle, slot));
        if self.ended.contains(&shuffle) || of_part.any(|stream| objects.has_put(stream)) {
            return Ok(());
        }
        Err(format!(
            "D6: {} drops copies of {slot:?} of {shuffle}, and has no receipt of objects that are all there",
            node.name
        ))
    }

    /// A node deletes objects of a shuffle: it must have ended (D7).
    pub fn objects_deleted(&self, shuffle: ShuffleId, slot: PoolSlot) -> Result<(), String> {
        match self.ended.contains(&shuffle) {
            true => Ok(()),
            false => Err(format!("D7: objects of {slot:?} of {shuffle} are deleted, which has not ended")),
        }
    }

    /// Whether what a disk has may go: of everything that was acknowledged, or may yet be, another intact copy is on a replica of
    /// its slot.
    pub fn may_lose(
        &self,
        node: usize,
        keys: &[BatchKey],
        nodes: &[Node],
        is_live: impl Fn(usize, &BatchKey) -> bool,
    ) -> bool {
        // What has more than one copy may be on R nodes, as its buffer knows, and be acknowledged later.
        let has_copies = |key: &BatchKey| {
            let has = |(at, node): &(usize, &Node)| node.disk.get(key).is_some() || self.has_lost(*at, key);
            nodes.iter().enumerate().filter(has).count() > 1
        };
        // A node that has a receipt may have dropped what it stands for.
        let is_needed = |key: &BatchKey| {
            self.acknowledged.contains(key) || has_copies(key) || key.stream.writer.is_objects()
        };
        let mut needed =
            keys.iter().filter(|key| !self.ended.contains(&key.stream.shuffle) && is_needed(key));
        needed.all(|key| {
            (0..nodes.len())
                .any(|other| other != node && is_live(other, key) && nodes[other].disk.has_synced(key))
        })
    }

    /// Whether R different machines have lost their copy of something that is needed of a shuffle in memory, and none is left,
    /// nor a receipt of what is in the object store.
    pub fn is_lost(
        &self,
        shuffle: ShuffleId,
        (nodes, replicas): (&[Node], usize),
        is_needed: impl Fn(&BatchKey) -> bool,
    ) -> bool {
        let of_shuffle = self.lost.iter().filter(|(key, _)| key.stream.shuffle == shuffle);
        let mut gone = of_shuffle.filter(|(key, by)| by.len() >= replicas && is_needed(key));
        let has = |node: &Node, key: &BatchKey| {
            let stands_for = |stream: &Stream| {
                stream.writer.is_objects() && (stream.shuffle, stream.slot) == (shuffle, key.stream.slot)
            };
            node.disk.batches.iter().any(|batch| batch.key == *key || stands_for(&batch.key.stream))
        };
        self.in_memory.contains(&shuffle) && gone.any(|(key, _)| !nodes.iter().any(|node| has(node, key)))
    }

    /// Whether a shuffle that is not sealed cannot be read without it: somebody was told that it is stored, or an attempt that
    /// may win needs its stream so far.
    fn is_needed(&self, key: &BatchKey) -> bool {
        let marked = self.marked.get(&key.stream).copied().unwrap_or(0);
        self.acknowledged.contains(key) || key.number <= marked
    }

    /// A leader says that some of a shuffle is lost: so it is (D6).
    pub fn fails(&mut self, shuffle: ShuffleId, all: (&[Node], usize)) -> Result<(), String> {
        if self.failed.contains(&shuffle) || self.ended.contains(&shuffle) {
            return Ok(());
        }
        if !self.is_lost(shuffle, all, |key| self.is_needed(key)) {
            return Err(format!("D6: {shuffle} fails, and R machines have lost nothing that it needs"));
        }
        self.failed.insert(shuffle);
        Ok(())
    }

    /// A division says that all it has written is on R disks (X6).
    pub fn divided(
        &mut self,
        shuffle: ShuffleId,
        writer: &Writer,
        last: &BTreeMap<PoolSlot, u64>,
        (nodes, replicas): (&[Node], usize),
    ) -> Result<(), String> {
        // Of a sealed one the plan says what counts, and what is stored of that may be in the object store.
        if self.ended.contains(&shuffle) || self.plans.contains_key(&shuffle) {
            return Ok(());
        }
        for (slot, last) in last {
            let stream = Stream { shuffle, slot: *slot, writer: writer.clone() };
            for number in 1..=*last {
                let key = BatchKey { stream: stream.clone(), number };
                let copies = self.copies(&key, nodes);
                if copies < replicas {
                    return Err(format!(
                        "X6: a division is said to be stored, and {key:?} has {copies} copies"
                    ));
                }
                self.acknowledged.insert(key);
            }
        }
        Ok(())
    }

    /// A leader has decided to seal: once, by one plan (X7).
    pub fn decided(&mut self, plan: &Arc<Plan>) -> Result<(), String> {
        match self.plans.insert(plan.shuffle, plan.clone()) {
            Some(known) if known != *plan => {
                Err(format!("X7: {} is sealed twice, by different plans", plan.shuffle))
            }
            _ => Ok(()),
        }
    }

    /// A client hears that its shuffle is sealed: with one attempt for each partition (X7).
    pub fn sealed(&mut self, plan: &Arc<Plan>, partitions: u32) -> Result<(), String> {
        self.decided(plan)?;
        let mut won: Vec<u32> = plan.winners.values().map(|winner| winner.partition).collect();
        won.sort_unstable();
        if won != (0..partitions).collect::<Vec<_>>() {
            return Err(format!("X7: of {partitions} partitions {won:?} have winners"));
        }
        Ok(())
    }

    /// What a read has given, by partitions that are cut so or by intervals of keys (D6, X7, X13).
    pub fn read(
        &mut self,
        plan: &Plan,
        partitions: &BTreeSet<u32>,
        parts: &[Vec<Placed>],
        (by, combine): (Option<CutBy>, Option<Combine>),
    ) -> Result<(), String> {
        by.map_or(Ok(()), |by| are_cut(by, parts))?;
        let output: Vec<Placed> = parts.concat();
        let order = |one: &Placed| (one.key.clone(), one.partition, place_of(one, combine));
        if let Some(pair) = output.windows(2).find(|pair| order(&pair[0]) >= order(&pair[1])) {
            return Err(format!("D6: {:?} is read before {:?}", pair[0], pair[1]));
        }
        for partition in partitions {
            self.is_one_attempt(plan.shuffle, *partition, &output, combine)?;
        }
        if let Some(other) = output.iter().find(|one| !partitions.contains(&one.partition)) {
            return Err(format!("D6: {other:?} is read, and its partition is not expected"));
        }
        match self.outputs.get(&plan.shuffle) {
            Some(before) if *before != output => {
                Err("X13: two reads have given different records".to_owned())
            }
            _ => {
                self.outputs.insert(plan.shuffle, output);
                Ok(())
            }
        }
    }

    fn is_one_attempt(
        &self,
        shuffle: ShuffleId,
        partition: u32,
        output: &[Placed],
        combine: Option<Combine>,
    ) -> Result<(), String> {
        let of_partition = output.iter().filter(|one| one.partition == partition);
        let mut got: Vec<Record> =
            of_partition.map(|one| Record { key: one.key[..].into(), value: one.value[..].into() }).collect();
        got.sort();
        let own = |attempt: &&Attempt| attempt.shuffle == shuffle && attempt.partition == partition;
        let is_it = |attempt: &Attempt| {
            let mut given = self.attempts.get(attempt).cloned().unwrap_or_default();
            given.sort();
            match combine {
                Some(how) => got.len() <= given.len() && totals_as_given(how, &given) == totals(how, &got),
                None => given == got,
            }
        };
        if self.whole.iter().filter(own).any(is_it) {
            return Ok(());
        }
        let ids: BTreeSet<&[u8]> = got.iter().filter_map(|record| record.value.get(..16)).collect();
        Err(format!(
            "D6: {} records of partition {partition} were read, of {} attempts: no whole attempt has these",
            got.len(),
            ids.len()
        ))
    }
}

/// X13: no partition has more or less than it may, and by keys no key is in two.
fn are_cut(by: CutBy, parts: &[Vec<Placed>]) -> Result<(), String> {
    let size = |one: &Placed| if by == CutBy::Bytes { one.sized().1 } else { 1 };
    let sizes: Vec<u64> = parts.iter().map(|part| part.iter().map(size).sum()).collect();
    let share = sizes.iter().sum::<u64>() / (parts.len() as u64).max(1);
    let records = || parts.iter().flatten();
    let is_right = match by {
        CutBy::Records => sizes.iter().all(|size| (share..=share + 1).contains(size)),
        CutBy::Bytes => {
            let largest = records().map(size).max().unwrap_or(0);
            sizes.iter().all(|size| size.abs_diff(share) <= largest + 1)
        }
        CutBy::Keys => {
            let mut of_keys: BTreeMap<&[u8], u64> = BTreeMap::new();
            records().for_each(|one| *of_keys.entry(&one.key).or_default() += 1);
            let heaviest = of_keys.values().copied().max().unwrap_or(0);
            sizes.iter().all(|size| *size <= share + 1 + heaviest)
        }
    };
    if !is_right {
        return Err(format!("X13: partitions by {by:?} of sizes {sizes:?}"));
    }
    let some: Vec<&Vec<Placed>> = parts.iter().filter(|part| !part.is_empty()).collect();
    let shares_key =
        |pair: &&[&Vec<Placed>]| pair[0].last().map(|one| &one.key) == pair[1].first().map(|one| &one.key);
    match some.windows(2).find(shares_key) {
        Some(pair) if by == CutBy::Keys => {
            Err(format!("X13: key {:?} is in two partitions", pair[1].first().map(|one| &one.key)))
        }
        _ => Ok(()),
    }
}

/// What all records of each key give together.
type Totals = BTreeMap<Vec<u8>, Result<[u8; 8], TotalTooLarge>>;

/// Of stored records; none: one is no number.
fn totals(how: Combine, records: &[Record]) -> Option<Totals> {
    let mut totals: BTreeMap<Vec<u8>, Total> = BTreeMap::new();
    for Record { key, value } in records {
        match totals.get_mut(&key[..]) {
            Some(total) => total.add(value).ok()?,
            None => drop(totals.insert(key.to_vec(), Total::new(how, value).ok()?)),
        }
    }
    Some(totals.into_iter().map(|(key, total)| (key, total.value())).collect())
}

/// Of records as their client gave them.
fn totals_as_given(how: Combine, records: &[Record]) -> Option<Totals> {
    let stored = |record: &Record| {
        let value = how.stored(&record.value).ok()?;
        Some(Record { key: record.key.clone(), value: value.into() })
    };
    totals(how, &records.iter().map(stored).collect::<Option<Vec<Record>>>()?)
}

/// Where a record stood in its attempt. Of one that others were combined with only its frame is known.
fn place_of(placed: &Placed, combine: Option<Combine>) -> Vec<u8> {
    match combine {
        Some(_) => [placed.frame.to_be_bytes(), u64::from(placed.index).to_be_bytes()].concat(),
        None => placed.value.get(16..).unwrap_or_default().to_vec(),
    }
}
