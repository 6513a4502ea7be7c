//! Readers of a table's changes: each goes through the table, from shard to shard, on and on from what it has. One is quick; one
//! is slow, and is told now and then that what it lacks is not kept any more. [`crate::oracle::feeds`] says what must be so of
//! what they are given.

use crate::clock::{MS, SECOND, True};
use crate::draw::Draw;
use crate::message::Event;
use crate::model::{KEYS, KeyAt};
use crate::oracle::feeds::Heard;
use crate::scene::Scene;
use crate::table::RowDeed;
use crate::world::World;
use partage_core::keyspace::key::{Key, KeyRange};
use partage_core::keyspace::map::Access;
use partage_core::keyspace::sharding::Bounds;
use partage_service::table::feed::{Progress, Since};

/// How long each reader rests at most, while faults come.
const RESTS: [True; 2] = [100 * MS, 3 * SECOND];

/// The position of the reader that rests for a short time, and must not lag.
const QUICK: usize = 0;

/// Readings that any replica may answer, not only a leader, in thousandths.
const ANYWHERE: u64 = 200;

/// Once faults have stopped, the quick one has a change that long after it was committed. It reads the shard of one key at a
/// time, a few changes at once.
const LAG: True = 40 * SECOND;

/// The readers, and what each has.
#[derive(Debug)]
pub struct FeedReaders {
    draw: Draw,
    has: Vec<Progress>,
}

impl FeedReaders {
    /// Of a run with that seed.
    pub fn new(seed: u64) -> FeedReaders {
        let nothing = Progress::begin([Bounds::Keys(KeyRange::all())], &Since::Oldest);
        FeedReaders { draw: Draw::new(!seed ^ 5), has: vec![nothing; RESTS.len()] }
    }

    /// Has each reader begin, a second later.
    pub fn begin(&mut self, scene: &mut Scene) {
        (0..RESTS.len()).for_each(|reader| scene.after(SECOND, Event::FeedReader(reader)));
    }
}

impl World {
    /// A reader reads on, or has heard what came of it and rests.
    pub fn feed_reader(&mut self, reader: usize) {
        if let Some(heard) = self.scene.oracles.feeds.take_heard(reader) {
            self.reader_has(reader, heard);
            let longest = if self.is_lively() { RESTS[reader] } else { RESTS[reader].max(300 * MS) };
            let rest = self.feeds.draw.between(MS, longest);
            return self.scene.after(rest, Event::FeedReader(reader));
        }
        let Some(keyspace) = self.scene.oracles.spaces.iter().position(|space| space.is_replicated()) else {
            return;
        };
        let op = self.next_op();
        let key = KeyAt { keyspace, key: self.feeds.draw.index(KEYS) };
        let access = if self.feeds.draw.chance(ANYWHERE) { Access::Read } else { Access::Write };
        let progress = self.feeds.has[reader].clone();
        self.scene.oracles.feeds.begins(op, reader);
        self.operate_on_row(op, key, access, RowDeed::Changes(progress));
    }

    fn reader_has(&mut self, reader: usize, heard: Heard) {
        let keys = self.keys_of_rows();
        let oracles = &mut self.scene.oracles;
        let tables = &oracles.storage.tables;
        let (findings, read) = match heard {
            None => return,
            Some(Ok(page)) => {
                let findings = oracles.feeds.read(reader, &page, &keys, tables);
                (findings, page.progress)
            }
            Some(Err(gone)) => {
                self.scene.count("readers of changes that were late");
                let oracles = &mut self.scene.oracles;
                let finding = oracles.feeds.is_late(reader, &gone.bounds, &oracles.storage.tables);
                (finding.into_iter().collect(), Progress::begin([gone.bounds], &Since::Oldest))
            }
        };
        let has = &mut self.feeds.has[reader];
        *has = std::mem::take(has).read_on(read);
        self.scene.count("pages of changes");
        findings.into_iter().for_each(|(invariant, text)| self.scene.violate(invariant, text));
    }

    fn keys_of_rows(&self) -> Vec<Key> {
        let tables = self.scene.oracles.spaces.iter().filter(|space| space.is_replicated());
        tables.flat_map(|space| &space.keys).filter_map(|key| Key::new(key).ok()).collect()
    }

    /// L1: the quick reader has what was committed long ago of the rows of shards that serve.
    pub fn readers_lag(&mut self, serves: impl Fn(&Key) -> bool) {
        let until = self.scene.now.saturating_sub(LAG);
        let oracles = &self.scene.oracles;
        let mut served = self.keys_of_rows().into_iter().filter(|key| serves(key));
        let finding = served.find_map(|key| oracles.feeds.lags(QUICK, &key, until, &oracles.storage.tables));
        finding.into_iter().for_each(|(invariant, text)| self.scene.violate(invariant, text));
    }
}
