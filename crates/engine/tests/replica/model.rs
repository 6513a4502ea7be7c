//! Random operations against an ordered map.

use std::fs;

use partage_engine::replica::{Direction, Engine, Row, Snapshot, Store};
use partage_service::table::replication::LogPosition;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::harness::{Machine, Map, Real, Simulated, Small, StoreOf, Trees, all, apply, compact, get, rows};

#[derive(Debug, Clone)]
enum Step {
    Apply(Vec<(Vec<u8>, Option<Vec<u8>>)>),
    Flush,
    Compact,
    TakeSnapshot,
    DropSnapshot(usize),
    Range(Option<Vec<u8>>, Option<Vec<u8>>, bool),
    Reopen,
    Crash,
    Refill,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => (0..40u8).prop_map(|key| vec![key]),
        2 => prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..4),
        1 => (0..4u8).prop_map(|key| vec![key; 70]),
    ]
}

/// One in six is stored apart from its key.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![5 => 0..60usize, 1 => 4_090..9_000usize];
    (any::<u8>(), size).prop_map(|(fill, bytes)| vec![fill; bytes])
}

fn step() -> impl Strategy<Value = Step> {
    let changes = prop::collection::vec((key(), prop::option::weighted(0.7, value())), 0..12);
    let bound = || prop::option::of(key());
    prop_oneof![
        8 => changes.prop_map(Step::Apply),
        5 => Just(Step::Flush),
        2 => Just(Step::Compact),
        2 => Just(Step::TakeSnapshot),
        1 => any::<usize>().prop_map(Step::DropSnapshot),
        2 => (bound(), bound(), any::<bool>()).prop_map(|(from, to, forward)| Step::Range(from, to, forward)),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
        1 => Just(Step::Refill),
    ]
}

struct World<M: Machine> {
    machine: M,
    store: Option<StoreOf<M>>,
    name: String,
    now: Map,
    flushed: (LogPosition, Map),
    snapshots: Vec<(<StoreOf<M> as Store>::Snapshot, LogPosition, Map)>,
}

impl<M: Machine> World<M> {
    fn new() -> World<M> {
        let machine = M::new();
        let store = machine.engine().open(&machine.folder("0")).unwrap();
        World {
            machine,
            store: Some(store),
            name: "0".to_owned(),
            now: Map::new(),
            flushed: <(LogPosition, Map)>::default(),
            snapshots: Vec::new(),
        }
    }

    fn store(&self) -> &StoreOf<M> {
        self.store.as_ref().unwrap()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Apply(changes) => {
                let group: Vec<_> = changes.iter().map(|(key, value)| (&key[..], value.as_deref())).collect();
                apply(self.store(), &group);
                for (key, value) in changes {
                    match value {
                        Some(value) => self.now.insert(key, value),
                        None => self.now.remove(&key),
                    };
                }
            }
            Step::Flush => {
                let applied = self.store().applied();
                assert_eq!(self.store().flush().unwrap(), applied);
                self.flushed = (applied, self.now.clone());
            }
            Step::Compact => {
                self.store().compact().unwrap();
            }
            Step::TakeSnapshot => {
                let snapshot = self.store().snapshot().unwrap();
                self.snapshots.push((snapshot, self.store().applied(), self.now.clone()));
            }
            Step::DropSnapshot(which) if !self.snapshots.is_empty() => {
                self.snapshots.swap_remove(which % self.snapshots.len());
            }
            Step::DropSnapshot(_) => {}
            Step::Range(from, to, forward) => self.range(from.as_deref(), to.as_deref(), forward),
            Step::Reopen => {
                self.snapshots.clear();
                self.store = None;
                self.open();
            }
            Step::Crash => {
                self.snapshots.clear();
                self.machine.crash();
                self.open();
            }
            Step::Refill => self.refill(),
        }
        self.check();
    }

    fn open(&mut self) {
        self.store = Some(self.machine.engine().open(&self.machine.folder(&self.name)).unwrap());
        self.now = self.flushed.1.clone();
        assert_eq!(self.store().applied(), self.flushed.0);
    }

    fn range(&self, from: Option<&[u8]>, to: Option<&[u8]>, forward: bool) {
        let snapshot = self.store().snapshot().unwrap();
        let direction = if forward { Direction::Forward } else { Direction::Backward };
        let mut found: Vec<Row> = snapshot.range(from, to, direction).map(Result::unwrap).collect();
        if !forward {
            found.reverse();
        }
        let inside = |key: &[u8]| from.is_none_or(|from| from <= key) && to.is_none_or(|to| key < to);
        let wanted = self.now.iter().filter(|(key, _)| inside(key));
        assert!(
            found
                .iter()
                .map(|row| (&*row.key, &*row.value))
                .eq(wanted.map(|(key, value)| (&key[..], &value[..])))
        );
    }

    /// Goes on with a store that was filled from this one.
    fn refill(&mut self) {
        let snapshot = self.store().snapshot().unwrap();
        if snapshot.position() == LogPosition::default() {
            return;
        }
        self.name.push('f');
        let target = self.machine.engine().open(&self.machine.folder(&self.name)).unwrap();
        let mut from = None;
        loop {
            let chunk = snapshot.export(from.as_deref(), None, 300).unwrap();
            target.fill(snapshot.position(), &chunk.rows, chunk.next.is_none()).unwrap();
            from = chunk.next;
            if from.is_none() {
                break;
            }
        }
        self.store = Some(target);
        self.flushed = (snapshot.position(), self.now.clone());
    }

    fn check(&self) {
        assert_eq!(self.store().flushed(), self.flushed.0);
        for key in 0..40u8 {
            assert_eq!(get(self.store(), &[key]).as_ref(), self.now.get(&[key][..]));
        }
        assert_eq!(rows(&self.store().snapshot().unwrap()), self.now);
        for (snapshot, position, then) in &self.snapshots {
            assert_eq!(snapshot.position(), *position);
            assert_eq!(&rows(snapshot), then);
        }
        self.store().median().unwrap();
    }
}

fn run<M: Machine>(cases: u32) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let steps = prop::collection::vec(step(), 1..70);
    let outcome = TestRunner::new(config).run(&steps, |steps| {
        let mut world = World::<M>::new();
        steps.into_iter().for_each(|step| world.step(step));
        world.store().verify().unwrap();
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn the_real_engine_is_an_ordered_map() {
    run::<Real>(40);
}

#[test]
fn the_real_engine_with_small_files_is_an_ordered_map() {
    run::<Small>(40);
}

#[test]
fn the_simulated_engine_is_an_ordered_map() {
    run::<Simulated>(40);
}

#[test]
#[ignore = "takes minutes: ./test long"]
fn the_real_engine_is_an_ordered_map_for_long() {
    run::<Real>(1_000);
    run::<Small>(1_000);
}

/// Rewrites five thousand rows again and again, in several levels of small files.
#[test]
fn many_levels_of_files_are_an_ordered_map_and_give_room_back() {
    let machine = Trees::<8_000>::new();
    let mut store = machine.engine().open(&machine.folder("a")).unwrap();
    let (mut model, mut state, mut kept) = (Map::new(), 1u64, None);
    for round in 0..120u64 {
        for _ in 0..40 {
            let mut group = Vec::new();
            for _ in 0..5 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let key = (state >> 33) % 5_000;
                let bytes = if key.is_multiple_of(50) { 5_000 } else { 60 };
                let value = (!(state >> 20).is_multiple_of(6)).then(|| vec![round as u8; bytes]);
                group.push((key.to_be_bytes().to_vec(), value));
            }
            apply(&store, &group.iter().map(|(key, value)| (&key[..], value.as_deref())).collect::<Vec<_>>());
            for (key, value) in group {
                match value {
                    Some(value) => model.insert(key, value),
                    None => model.remove(&key),
                };
            }
        }
        store.flush().unwrap();
        if round % 2 == 1 {
            compact(&store);
        }
        if round % 30 == 29 {
            assert_eq!(all(&store), model, "round {round}");
            store.verify().unwrap();
        }
        if round == 50 {
            kept = Some((store.snapshot().unwrap(), model.clone()));
        }
        if let Some((snapshot, then)) = kept.as_ref().filter(|_| round == 100) {
            assert_eq!(&rows(snapshot), then);
            kept = None;
        }
        if round == 110 {
            drop(store);
            store = machine.engine().open(&machine.folder("a")).unwrap();
        }
    }
    compact(&store);
    let live: usize = model.iter().map(|(key, value)| key.len() + value.len()).sum();
    let files = fs::read_dir(machine.folder("a").join("tables")).unwrap().count();
    let on_disk: u64 = ["tables", "blobs"]
        .iter()
        .flat_map(|inner| fs::read_dir(machine.folder("a").join(inner)).unwrap())
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    println!("{files} files of runs, {live} bytes live, {on_disk} on the disk, {:?}", store.size());
    assert!(files > 20 && on_disk < 4 * live as u64, "{files} files, {on_disk} bytes for {live}");
    let median = store.median().unwrap().unwrap();
    let before = model.range(..median.to_vec()).count();
    assert!((model.len() / 4..3 * model.len() / 4).contains(&before), "{before} of {}", model.len());
}
