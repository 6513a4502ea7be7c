//! What a run is like.

use crate::clock::{MS, True};
use crate::draw::Draw;
use partage_service::shuffle::settings::Settings;

/// What is bulk is lost at times from one node to another one, while all other messages pass.
#[derive(Debug, Clone, Copy)]
pub struct BulkWeather {
    /// Of the draws of these failures.
    pub seed: u64,
    /// Whether nothing else goes wrong.
    pub is_alone: bool,
    /// A bug for the check to find: a question that may overtake batches passes, though batches are known not to.
    pub asks_ahead: bool,
}

/// Of the first 16 seeds, with which most planted bugs are found, none has failures of bulk.
const BULK_SEED: u64 = 0xb01c_b780;

/// Drawn once for each run.
#[derive(Debug, Clone)]
pub struct Weather {
    /// Nodes that there are, and those that belong to the pool at first.
    pub nodes: usize,
    pub first: usize,
    /// The last ones of these nodes, which only buffer and are there from the start.
    pub buffers: usize,
    pub slots: usize,
    pub replicas: usize,
    pub jobs: usize,
    pub settings: Settings,
    /// How long there are faults, and the mean time between two.
    pub faults_for: True,
    pub fault_every: True,
    /// How long a message is under way, typically.
    pub delay: True,
    /// How many of a thousand messages are lost, doubled and very late.
    pub lost: u64,
    pub doubled: u64,
    pub late: u64,
    /// How long a sync takes, typically.
    pub sync: True,
    /// How many of a thousand reads a busy holder refuses.
    pub busy: u64,
    /// After how long a silent node is replaced.
    pub dead_after: True,
    /// How many of a thousand attempts have a second one beside them, and how many die.
    pub speculated: u64,
    pub die: u64,
    /// How many of a thousand calls the object store refuses; some of these it has done.
    pub refused: u64,
    /// A node that does not see what others have put there, until faults end.
    pub blind: Option<usize>,
    /// How many of a thousand batches find no room where they come.
    pub no_room: u64,
    /// How long it takes at most until a batch is stored, however few there are: all nodes are busy. 0: as long as a sync.
    pub stored_late: True,
    /// Whether one shuffle floods a buffer into which another one trickles.
    pub floods: bool,
    /// While its one shuffle is under way no machine is called with a tick, and its job goes on as soon as it has an answer.
    pub is_lone: bool,
    /// None: a link between two nodes is cut for all messages, or for none.
    pub bulk: Option<BulkWeather>,
}

impl Weather {
    pub fn drawn(draw: &mut Draw) -> Weather {
        let replicas = if draw.chance(250) { 3 } else { 2 };
        let first = draw.between(replicas as u64 + 1, 6) as usize;
        let settings = Settings {
            linger_ms: draw.between(1, 30),
            stand_in_ms: draw.between(60, 400),
            resend_ms: draw.between(40, 150),
            give_up_ms: 4_000,
            silent_ms: 3_000,
            // Of memory: two to five times what keys and values have, as frames are divided into few ranges or many.
            buffer_bytes: draw.between(1_700, 28_000),
            chunk_bytes: draw.between(60, 1_500),
            // So most chunks go out in several calls.
            sent_at_once: 400,
            sample_every: draw.between(1, 4),
            sketch_k: draw.between(8, 64) as usize,
            sample_ms: draw.between(20, 200),
            inventory_ms: draw.between(100, 500),
            fetched_at_once: draw.between(2, 32) as usize,
            // A few marks, so that most shuffles need several messages for all.
            marks_bytes: 400,
            grace_ms: 3_000,
            first_sample: draw.between(5, 100),
            drift: draw.between(1, 3),
            versions: 6,
            divisions: draw.between(1, 6) as usize,
            division_batches: draw.between(1, 20),
            divide_ms: draw.between(50, 800),
            task_ms: draw.between(200, 1_500),
            gather_ms: draw.between(100, 600),
            // Longer than faults last: what no node gives after this time is lost.
            lost_ms: 15_000,
            unsealed_ttl_ms: 30_000,
            sealed_ttl_ms: 30_000,
            ended_kept: 256,
            read_records: draw.between(3, 40),
            read_wait_ms: draw.between(100, 400),
            back_off_ms: 30,
            longest_back_off_ms: 800,
            retry_budget: 10,
            objects_rest_ms: 100,
            longest_objects_rest_ms: 1_000,
            sweep_ms: 2_000,
            ..Settings::default()
        };
        let weather = Weather {
            nodes: first + draw.between(0, 3) as usize,
            first,
            buffers: 0,
            slots: draw.between(2, 6) as usize,
            replicas,
            jobs: draw.between(1, 5) as usize,
            settings,
            faults_for: draw.between(3_000, 12_000) * MS,
            fault_every: draw.between(80, 500) * MS,
            delay: draw.between(100, 3_000),
            lost: *draw.pick(&[0, 5, 30, 80]).unwrap_or(&5),
            doubled: *draw.pick(&[0, 10, 50]).unwrap_or(&10),
            late: *draw.pick(&[0, 5, 30]).unwrap_or(&5),
            sync: draw.between(100, 6_000),
            busy: *draw.pick(&[0, 50, 300]).unwrap_or(&50),
            dead_after: draw.between(500, 2_500) * MS,
            speculated: *draw.pick(&[0, 100, 500]).unwrap_or(&100),
            die: *draw.pick(&[0, 20, 100]).unwrap_or(&20),
            refused: 0,
            blind: None,
            no_room: 0,
            stored_late: 0,
            floods: false,
            is_lone: false,
            bulk: None,
        };
        weather.with_buffers().with_sizes().with_objects().with_first_bounds().with_windows()
    }

    /// In some worlds nodes that only buffer. They are drawn apart, so that all other worlds are what they were without these.
    fn with_buffers(self) -> Weather {
        let mut draw = Draw::new(self.faults_for ^ self.sync);
        let buffers = if draw.chance(300) { draw.between(1, 2) as usize } else { 0 };
        Weather { nodes: self.nodes + buffers, buffers, ..self }
    }

    /// Batches that are smaller than what is sent at a time, and few slots that are counted at a time. These are drawn apart too.
    fn with_sizes(self) -> Weather {
        let mut draw = Draw::new(self.faults_for.rotate_left(32) ^ self.sync);
        let batch_bytes = draw.between(30, self.settings.chunk_bytes + 1);
        let counts_at_once = draw.between(1, 5) as usize;
        Weather { settings: Settings { batch_bytes, counts_at_once, ..self.settings }, ..self }
    }

    /// In some worlds an object store, to which sealed shuffles go. These are drawn apart too.
    fn with_objects(self) -> Weather {
        let mut draw = Draw::new(self.faults_for.rotate_left(16) ^ self.sync);
        let settings = Settings {
            has_objects: draw.chance(400),
            offloads_at_once: draw.between(1, 4) as usize,
            ..self.settings
        };
        let refused = *draw.pick(&[0, 50, 300]).unwrap_or(&50);
        let blind = if draw.chance(200) { Some(draw.index(self.nodes)) } else { None };
        Weather { settings, refused, blind, ..self }
    }

    /// In some worlds what would go out without bounds waits for the first ones, which few keys suffice for. In the others most
    /// is written before them, and divided. These are drawn apart too.
    fn with_first_bounds(self) -> Weather {
        let mut draw = Draw::new(self.faults_for.rotate_left(48) ^ self.sync);
        let range_sample = draw.between(0, 3);
        let (bounds_wait_ms, first_sample) = match draw.chance(400) {
            true => (draw.between(10, 60), draw.between(3, 20)),
            false => (0, self.settings.first_sample),
        };
        // Few ranges do not make the first sample smaller than drawn.
        let small_sample = u64::MAX;
        let settings = Settings { first_sample, small_sample, range_sample, bounds_wait_ms, ..self.settings };
        Weather { settings, ..self }
    }

    /// Little that is under way to a node at a time, and nodes without room. These are drawn apart too.
    fn with_windows(self) -> Weather {
        let mut draw = Draw::new(self.faults_for.rotate_left(8) ^ self.sync);
        let (window_bytes, window_batches) = (draw.between(300, 20_000), draw.between(1, 64));
        let no_room = *draw.pick(&[0, 20, 100]).unwrap_or(&0);
        Weather { settings: Settings { window_bytes, window_batches, ..self.settings }, no_room, ..self }
    }

    /// In one world in four bulk is lost between nodes; in some of these nothing else goes wrong. These are drawn apart, by the
    /// seed of the run, so that all other worlds are what they were without these.
    pub fn with_bulk(self, seed: u64) -> Weather {
        let mut draw = Draw::new(seed ^ BULK_SEED);
        if !draw.chance(250) {
            return self;
        }
        let is_alone = draw.chance(300);
        let bulk = Some(BulkWeather { seed: draw.bits(), is_alone, asks_ahead: false });
        if is_alone { self.of_bulk(bulk, &mut draw) } else { Weather { bulk, ..self } }
    }

    /// The same with these failures of bulk alone. Nothing else keeps what is written waiting: windows are wide, and disks and
    /// the network are fast.
    fn of_bulk(self, bulk: Option<BulkWeather>, draw: &mut Draw) -> Weather {
        let (jobs, faults_for, batch_bytes) = (self.jobs.max(2), self.faults_for, self.settings.chunk_bytes);
        let settings = Settings {
            stand_in_ms: draw.between(150, 400),
            window_bytes: 32 << 20,
            window_batches: 1_024,
            batch_bytes,
            ..self.settings.clone()
        };
        Weather { jobs, faults_for, settings, sync: 1_000, delay: 200, bulk, ..self.calm() }
    }

    /// Whether bulk is lost between nodes, and nothing else goes wrong.
    pub fn is_of_bulk_alone(&self) -> bool {
        self.bulk.is_some_and(|bulk| bulk.is_alone)
    }

    /// The same with one shuffle, and without faults.
    pub fn calm(self) -> Weather {
        let none =
            Weather { jobs: 1, fault_every: 0, lost: 0, doubled: 0, late: 0, busy: 0, no_room: 0, ..self };
        Weather { faults_for: MS, speculated: 0, die: 0, refused: 0, ..none }
    }

    /// The same with a flood and a trickle into one buffer, which has room for two frames of the trickle and is filled faster
    /// than disks take. Batches are small against those frames: in what comes free with one of them a frame of the flood fits,
    /// and none of the trickle. Bounds come soon, and what was written before is divided beside the flood, one batch at a time:
    /// more might not fit into the memory.
    pub fn of_flood(self, draw: &mut Draw) -> Weather {
        let settings = Settings {
            linger_ms: draw.between(1, 10),
            buffer_bytes: draw.between(2_700, 3_300),
            chunk_bytes: 4_000,
            batch_bytes: 4_000,
            sent_at_once: 1 << 20,
            first_sample: 20,
            range_sample: 0,
            bounds_wait_ms: 0,
            division_batches: 1,
            // Disks are slow, and no node is replaced for that.
            stand_in_ms: 20_000,
            task_ms: 20_000,
            resend_ms: 1_000,
            gather_ms: 2_000,
            give_up_ms: 30_000,
            silent_ms: 30_000,
            has_objects: false,
            window_bytes: 32 << 20,
            window_batches: 1_024,
            ..self.settings.clone()
        };
        let (sync, delay) = (draw.between(10_000, 16_000), draw.between(100, 1_000));
        let size = Weather { nodes: 3, first: 3, buffers: 0, slots: 6, replicas: 2, ..self.calm() };
        Weather { jobs: 2, settings, sync, delay, floods: true, ..size }
    }

    /// The same with nodes that are busy: a batch is stored some times later than its sender asks about it, and than a silent
    /// node is replaced, and some batches find no room. Nothing else goes wrong.
    pub fn of_busy(self, draw: &mut Draw) -> Weather {
        let batch_bytes = draw.between(200, 1_500);
        let settings = Settings {
            stand_in_ms: draw.between(600, 1_000),
            resend_ms: draw.between(80, 150),
            window_bytes: draw.between(3_000, 12_000),
            window_batches: draw.between(4, 64),
            buffer_bytes: 40_000,
            chunk_bytes: batch_bytes,
            batch_bytes,
            divisions: 16,
            division_batches: 20,
            task_ms: 20_000,
            gather_ms: 2_000,
            give_up_ms: 30_000,
            silent_ms: 30_000,
            has_objects: false,
            ..self.settings.clone()
        };
        let (stored_late, no_room) =
            (draw.between(1_500, 2_500) * MS, *draw.pick(&[0, 50, 150]).unwrap_or(&0));
        let size = Weather { nodes: 4, first: 4, buffers: 0, slots: 6, replicas: 2, ..self.calm() };
        let until = 30_000 * MS;
        Weather {
            jobs: 2,
            faults_for: until,
            sync: 1_000,
            delay: 200,
            settings,
            stored_late,
            no_room,
            ..size
        }
    }

    /// One shuffle on three nodes in one network, by the numbers that nodes run by, without faults and without ticks. Only that
    /// what has ended goes is sooner.
    pub fn lone(self) -> Weather {
        let ends = Settings {
            grace_ms: 3_000,
            unsealed_ttl_ms: 30_000,
            sealed_ttl_ms: 30_000,
            ..Settings::default()
        };
        let calm =
            Weather { nodes: 3, first: 3, buffers: 0, slots: 16, replicas: 2, settings: ends, ..self.calm() };
        Weather { delay: 200, sync: 500, is_lone: true, ..calm }
    }
}
