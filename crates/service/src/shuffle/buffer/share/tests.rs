//! Shuffles that flood, and those beside them.

use crate::shuffle::buffer::*;
use crate::shuffle::pool::SlotPlace;
use crate::shuffle::record::{MEMORY_OF_RECORD, Record};
use crate::shuffle::{Durability, TaskId};
use partage_core::base::id::{Epoch, Incarnation};
use proptest::prelude::*;

const ROOM: u64 = 10_000;
/// The memory of a record with a key of one byte and no value, in a segment of its own.
const LEAST: u64 = MEMORY_OF_RECORD + MEMORY_OF_SEGMENT + 1;

/// A record that takes so much memory, in a segment of its own.
fn record(memory: u64) -> Record {
    let value = usize::try_from(memory - LEAST).unwrap();
    Record { key: b"k".as_slice().into(), value: vec![0; value].into() }
}

/// A buffer of some room, with one attempt of each shuffle, and a node that stores when it is told to.
struct Clients {
    buffer: Buffer,
    now: u64,
    /// Frames that were taken, by shuffle.
    taken: BTreeMap<u128, u64>,
    sent: Vec<(NodeId, BatchKey)>,
}

impl Clients {
    /// Of shuffles 0, 1 and so on with these weights.
    fn new(weights: &[u16]) -> Clients {
        Clients::with_room(ROOM, weights)
    }

    fn with_room(buffer_bytes: u64, weights: &[u16]) -> Clients {
        let node = NodeId::new("a").unwrap();
        let place = SlotPlace { epoch: Epoch(1), live: vec![node.clone()], loading: Vec::new() };
        let map = PoolMap {
            generation: 1,
            replicas: 1,
            places: vec![place],
            nodes: vec![node.clone()],
            no_stand_ins: Default::default(),
        };
        let settings = Settings { buffer_bytes, ..Settings::default() };
        let buffer = Buffer::new(BufferId { node, incarnation: Incarnation(1) }, settings, map.into());
        let mut clients = Clients { buffer, now: 0, taken: BTreeMap::new(), sent: Vec::new() };
        for (shuffle, weight) in (0..).zip(weights) {
            clients.does(shuffle, Input::Open(Terms { weight: *weight, ..Terms::new(1, 1) }));
        }
        clients
    }

    fn does(&mut self, shuffle: u128, input: Input) -> Vec<Effect> {
        let attempt = Attempt { shuffle: ShuffleId(shuffle), partition: 0, id: AttemptId(1) };
        let effects = self.buffer.handle(Millis(self.now), Event::Client(attempt, input));
        self.hears(&effects);
        effects
    }

    fn hears(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Send(node, Message::Batch(batch)) = effect {
                self.sent.push((node.clone(), batch.key.clone()));
            }
        }
    }

    /// Hands the next frame in. Whether it was taken.
    fn frame(&mut self, shuffle: u128, memory: u64) -> bool {
        let number = self.taken.get(&shuffle).copied().unwrap_or(0) + 1;
        let effects = self.does(shuffle, Input::Frame(number, vec![record(memory)].into()));
        let is_taken = effects.iter().any(|effect| matches!(effect, Effect::Taken(..)));
        if is_taken {
            self.taken.insert(shuffle, number);
        }
        is_taken
    }

    /// All that is under way is stored.
    fn stores(&mut self) {
        while let Some((node, key)) = self.sent.pop() {
            let effects = self.buffer.handle(Millis(self.now), Event::Stored(node, key));
            self.hears(&effects);
        }
    }

    /// Hands the first frame of another attempt in. Whether it was taken.
    fn first_frame(&mut self, attempt: Attempt, memory: u64) -> bool {
        self.buffer.handle(Millis(self.now), Event::Client(attempt, Input::Open(Terms::new(1, 1))));
        let frame = Event::Client(attempt, Input::Frame(1, vec![record(memory)].into()));
        let effects = self.buffer.handle(Millis(self.now), frame);
        self.hears(&effects);
        effects.iter().any(|effect| matches!(effect, Effect::Taken(..)))
    }

    /// Some of what is under way is stored, the last one of it.
    fn stores_one(&mut self) {
        if let Some((node, key)) = self.sent.pop() {
            let effects = self.buffer.handle(Millis(self.now), Event::Stored(node, key));
            self.hears(&effects);
        }
    }

    fn memory_of(&self, shuffle: u128) -> u64 {
        self.buffer.memory_of(ShuffleId(shuffle))
    }

    /// So many frames that no further one is taken.
    fn floods(&mut self, shuffle: u128, memory: u64) {
        while self.frame(shuffle, memory) {}
    }
}

#[test]
fn r1_a_shuffle_that_writes_alone_has_all_memory_whatever_its_weight() {
    for weight in [1, 1_000] {
        let mut clients = Clients::new(&[weight]);
        clients.floods(0, 500);
        assert_eq!(clients.buffer.memory(), ROOM);
    }
}

#[test]
fn r1_a_flood_holds_a_small_shuffle_up_until_what_was_flooded_is_stored_and_no_longer() {
    let mut clients = Clients::new(&[1]);
    clients.floods(0, 200);
    assert_eq!(clients.buffer.memory(), ROOM);
    clients.does(1, Input::Open(Terms::new(1, 1)));
    assert!(!clients.frame(1, 3_000), "the memory is full");
    assert!(!clients.sent.is_empty(), "what fills it goes out");
    assert!(!clients.frame(0, 200));
    clients.stores();
    assert_eq!(clients.buffer.memory(), 0);
    // The flood is faster, and gets its share.
    clients.floods(0, 200);
    assert_eq!(clients.memory_of(0), ROOM / 2);
    assert!(clients.frame(1, 3_000));
    // From now on it waits for nobody: the other half is its own.
    for _ in 0..20 {
        clients.floods(0, 200);
        assert!(clients.frame(1, 1_000), "{:?}", clients.taken);
        clients.does(1, Input::Abort);
        clients.does(1, Input::Open(Terms::new(1, 1)));
        clients.taken.remove(&1);
        clients.stores();
    }
}

#[test]
fn r1_a_shuffle_whose_clients_are_silent_leaves_its_share_to_others() {
    let mut clients = Clients::new(&[1, 1]);
    clients.floods(0, 500);
    assert_eq!(clients.memory_of(0), ROOM / 2);
    clients.now = super::QUIET_MS;
    clients.floods(0, 500);
    assert_eq!(clients.memory_of(0), ROOM);
    assert!(!clients.frame(1, 500), "it waits until room comes");
    clients.stores();
    clients.floods(0, 500);
    assert!(clients.memory_of(0) == ROOM / 2 && clients.frame(1, 500), "it has its share again");
}

#[test]
fn r1_a_shuffle_that_trickles_has_its_share_between_two_of_its_attempts() {
    let mut clients = Clients::new(&[1]);
    let trickle = |number: u32| {
        let id = AttemptId(u128::from(number));
        Attempt { shuffle: ShuffleId(1), partition: number, id }
    };
    assert!(clients.first_frame(trickle(1), 500));
    for number in 2..20 {
        let (attempt, bytes) = (trickle(number - 1), 500 - MEMORY_OF_RECORD - MEMORY_OF_SEGMENT);
        let end = Event::Client(attempt, Input::End(1, bytes));
        let effects = clients.buffer.handle(Millis(clients.now), end);
        clients.hears(&effects);
        clients.stores();
        clients.floods(0, 200);
        assert!(clients.memory_of(0) <= ROOM / 2, "the other half is not the flood's");
        clients.now += 50;
        assert!(clients.first_frame(trickle(number), 500), "{number}");
    }
    clients.now += super::QUIET_MS;
    clients.stores();
    clients.floods(0, 200);
    assert!(clients.memory_of(0) > ROOM / 2, "it is quiet");
}

/// A division of another shuffle, of one record that takes so much memory.
fn division(memory: u64) -> (NodeId, Arc<Division>, Vec<Segment>) {
    let (node, shuffle) = (NodeId::new("a").unwrap(), ShuffleId(99));
    let task = TaskId { epoch: Epoch(1), number: 1 };
    let (tags, upto) = (BTreeMap::new(), BTreeMap::new());
    let (to, durability) = (Bounds::stashes(1).into(), Durability::Disk);
    let division = Division { task, shuffle, slot: PoolSlot(0), tags, upto, to, durability };
    let buffer = BufferId { node: node.clone(), incarnation: Incarnation(1) };
    let attempt = AttemptKey { buffer, number: 1 };
    let read = Segment { attempt, partition: 0, frame: 1, records: vec![record(memory)].into() };
    (node, division.into(), vec![read])
}

#[test]
fn r1_a_division_gets_room_beside_a_flood_of_another_shuffle() {
    let mut clients = Clients::new(&[1]);
    clients.floods(0, 500);
    let (leader, division, read) = division(3_000);
    let mut orders = 0;
    // A leader orders it again and again; each time the flood was there before.
    loop {
        orders += 1;
        assert!(orders < 20, "the division never begins");
        let order = Event::DivisionOrdered(leader.clone(), division.clone(), 2_000);
        let effects = clients.buffer.handle(Millis(clients.now), order);
        clients.hears(&effects);
        if effects.iter().any(|effect| matches!(effect, Effect::ReadDivision(..))) {
            break;
        }
        clients.now += Settings::default().resend_ms;
        clients.stores_one();
        clients.floods(0, 500);
    }
    // It is read meanwhile, and turns out to take more.
    let mut reads = 0;
    while clients.buffer.counts().divisions == 0 {
        reads += 1;
        assert!(reads < 20, "the division is never taken");
        clients.now += 200;
        clients.floods(0, 500);
        let done = Event::Divide(leader.clone(), division.clone(), read.clone());
        let effects = clients.buffer.handle(Millis(clients.now), done);
        clients.hears(&effects);
        clients.stores_one();
    }
    assert!(clients.buffer.memory() <= ROOM);
    clients.stores();
    clients.floods(0, 500);
    assert_eq!(clients.memory_of(0), ROOM, "no room is kept for it any more");
}

#[test]
fn l1_room_is_kept_for_no_division_that_is_not_ordered_any_more() {
    let mut clients = Clients::new(&[1]);
    let (leader, division, _) = division(3_000);
    let ordered = clients.buffer.handle(Millis(0), Event::DivisionOrdered(leader, division, 3_000));
    assert!(matches!(&ordered[..], [Effect::ReadDivision(..)]), "{ordered:?}");
    clients.floods(0, 500);
    assert_eq!(clients.memory_of(0), ROOM - 3_000);
    clients.now = 3_000;
    clients.floods(0, 500);
    assert_eq!(clients.memory_of(0), ROOM);
}

#[test]
fn r1_a_large_frame_gets_in_beside_small_ones_of_its_shuffle() {
    let mut clients = Clients::new(&[1]);
    clients.floods(0, 500);
    let large = Attempt { shuffle: ShuffleId(0), partition: 1, id: AttemptId(2) };
    let mut tries = 0;
    while !clients.first_frame(large, 6_000) {
        tries += 1;
        assert!(tries < 100, "the small ones take all that comes free");
        clients.now += 10;
        clients.stores_one();
        clients.floods(0, 500);
    }
    clients.stores();
    clients.floods(0, 500);
    assert_eq!(clients.memory_of(0), ROOM, "no room is kept for it any more");
}

#[test]
fn r1_room_is_made_of_a_shuffle_that_holds_much_though_others_hold_something() {
    let mut clients = Clients::with_room(20_000, &[1_000, 1, 1_000]);
    // By its weight the second one has most.
    assert!(clients.frame(1, 200) && clients.frame(0, 8_000) && !clients.frame(2, 11_900));
    let sent: Vec<u128> = clients.sent.iter().map(|(_, key)| key.stream.shuffle.0).collect();
    assert_eq!(sent, [0]);
}

#[test]
fn the_counts_of_a_buffer_say_what_it_did() {
    let mut clients = Clients::new(&[1]);
    clients.floods(0, 500);
    let counts = clients.buffer.counts();
    assert_eq!(
        (counts.taken_records, counts.taken_bytes),
        (20, 20 * (500 - MEMORY_OF_RECORD - MEMORY_OF_SEGMENT))
    );
    assert_eq!((counts.held_back, counts.flushes), (1, 1));
    assert_eq!(
        (counts.sent_records, counts.sent_bytes),
        (20, 20 * (500 - MEMORY_OF_RECORD - MEMORY_OF_SEGMENT))
    );
    assert_eq!((counts.stand_ins, counts.divisions), (0, 0));
}

proptest! {
    #[test]
    fn r1_whatever_comes_memory_has_its_bound_and_a_shuffle_its_share(
        weights in prop::collection::vec(1u16..=1_000, 1..6),
        steps in prop::collection::vec((0usize..6, LEAST..3_000, 0u8..12), 1..200),
    ) {
        let mut clients = Clients::new(&weights);
        let all: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        for (at, memory, what) in steps {
            if what == 0 {
                clients.stores();
                continue;
            }
            let at = at % weights.len();
            let share = ROOM * u64::from(weights[at]) / all;
            if clients.frame(at as u128, memory) {
                let own = clients.memory_of(at as u128);
                prop_assert!(own <= share.max(memory), "{own} of a share of {share}");
            }
            let parts: u64 = (0..weights.len()).map(|at| clients.memory_of(at as u128)).sum();
            prop_assert_eq!(parts, clients.buffer.memory());
            prop_assert!(parts <= ROOM, "{} of {}", parts, ROOM);
        }
    }

    #[test]
    fn r1_weights_are_honoured_within_a_frame(
        weights in prop::collection::vec(1u16..=20, 2..5),
        turns in prop::collection::vec(0usize..5, 1..300),
    ) {
        let frame = 200;
        let mut clients = Clients::new(&weights);
        for at in turns {
            clients.frame((at % weights.len()) as u128, frame);
        }
        (0..weights.len()).for_each(|at| clients.floods(at as u128, frame));
        let all: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        for (at, weight) in weights.iter().enumerate() {
            let (own, share) = (clients.memory_of(at as u128), ROOM * u64::from(*weight) / all);
            prop_assert!(own + frame > share && own <= share.max(frame), "{own} of {share}: {weights:?}");
        }
    }

    #[test]
    fn l1_each_shuffle_gets_on_though_there_is_room_for_few_of_their_frames(
        orders in prop::collection::vec(Just((0u128..8).collect::<Vec<_>>()).prop_shuffle(), 60),
    ) {
        // Room for three frames, and eight shuffles that try in whatever order.
        let mut clients = Clients::new(&[1; 8]);
        for order in orders {
            clients.now += 10;
            for shuffle in order {
                clients.frame(shuffle, 3_000);
            }
            clients.stores();
        }
        for shuffle in 0..8 {
            let taken = clients.taken.get(&shuffle).copied().unwrap_or(0);
            prop_assert!(taken >= 5, "shuffle {shuffle} got {taken} frames in: {:?}", clients.taken);
        }
    }

    #[test]
    fn r1_a_large_frame_gets_in_beside_many_small_ones(
        tries in prop::collection::vec(prop::collection::vec(0u128..6, 0..40), 20),
    ) {
        // The shares of seven are 1,428 each; the large frame needs nearly all memory at once.
        let mut clients = Clients::new(&[1; 7]);
        (0..6).for_each(|shuffle| clients.floods(shuffle, 200));
        let mut rounds = 0;
        for small in tries {
            clients.now += 10;
            if clients.frame(6, 9_000) {
                break;
            }
            for shuffle in small {
                clients.frame(shuffle, 200);
            }
            rounds += 1;
            // Of what is under way some is stored.
            let half = clients.sent.len().div_ceil(2);
            let later = clients.sent.split_off(half);
            clients.stores();
            clients.sent = later;
        }
        prop_assert!(rounds < 20, "{:?}", clients.taken);
    }
}
