use super::message::Append;
use super::*;
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, VecDeque};

mod closing;
mod logs;
mod reading;
mod sets;
mod writing;

const P1: PlacementId = PlacementId(1);
const P2: PlacementId = PlacementId(2);
const P3: PlacementId = PlacementId(3);

/// Replicas on one clock, with a network that delivers what is not cut, at once and in order.
struct Group {
    now: Millis,
    settings: Settings,
    replicas: BTreeMap<PlacementId, Replica>,
    disks: BTreeMap<PlacementId, (Stored, VecDeque<(u64, LogWrite)>)>,
    /// Disks that sync nothing.
    slow: BTreeSet<PlacementId>,
    /// Replicas that nothing reaches and of which nothing comes.
    cut: BTreeSet<PlacementId>,
    /// What came out that is no write and no message.
    said: Vec<(PlacementId, Effect)>,
    order: Order,
}

impl Group {
    /// Of `peers`, of which the first one leads under e1 and all `in_sync` are in sync.
    fn new(settings: Settings, peers: &[PlacementId], in_sync: &[PlacementId]) -> Group {
        let peer = |placement: &PlacementId| Peer {
            placement: *placement,
            node: NodeId::new(&format!("n{}", placement.0)).unwrap(),
            incarnation: Incarnation(1),
            may_join: true,
        };
        let order = Order {
            epoch: Epoch(1),
            configuration: Configuration(1),
            leader: peers[0],
            in_sync: in_sync.iter().copied().collect(),
            peers: peers.iter().map(peer).collect(),
            closes: false,
            hand_over_to: None,
        };
        let now = Millis(10_000);
        let new = |placement: &PlacementId| {
            let name = (*placement, Incarnation(1));
            (*placement, Replica::recover(name, settings, Stored::default(), now, true))
        };
        let mut group = Group {
            now,
            settings,
            replicas: peers.iter().map(new).collect(),
            disks: peers.iter().map(|placement| (*placement, Default::default())).collect(),
            slow: BTreeSet::new(),
            cut: BTreeSet::new(),
            said: Vec::new(),
            order: order.clone(),
        };
        group.order(|_| {});
        group
    }

    /// Three in sync, of which P1 has begun.
    fn of_three() -> Group {
        let mut group = Group::new(Settings::default(), &[P1, P2, P3], &[P1, P2, P3]);
        assert!(group.heard(P1, &Effect::Began(Epoch(1))));
        group.said.clear();
        group
    }

    /// The order changes, with a later configuration, and all hear it.
    fn order(&mut self, change: impl FnOnce(&mut Order)) {
        change(&mut self.order);
        self.order.configuration = self.order.configuration.next();
        for placement in self.replicas.keys().copied().collect::<Vec<_>>() {
            self.tell(placement, Event::Order(self.order.clone()));
        }
    }

    fn lead(&mut self, leader: PlacementId) {
        self.order(|order| {
            order.leader = leader;
            order.epoch = order.epoch.next();
        });
    }

    /// The leader hears that it is to hand over, or not any more.
    fn hand_over(&mut self, heir: Option<PlacementId>) {
        let leader = self.order.leader;
        self.tell(leader, Event::Order(Order { hand_over_to: heir, ..self.order.clone() }));
    }

    fn tell(&mut self, to: PlacementId, event: Event) {
        if self.cut.contains(&to) && !matches!(event, Event::Tick | Event::Synced(_)) {
            return;
        }
        let Some(replica) = self.replicas.get_mut(&to) else { return };
        for effect in replica.handle(self.now, event) {
            match effect {
                Effect::Write(number, write) => {
                    self.disks.get_mut(&to).unwrap().1.push_back((number, write));
                    self.sync(to);
                }
                Effect::Send(peer, message) if !self.cut.contains(&to) => {
                    self.tell(peer, Event::Message(to, message));
                }
                Effect::Send(..) => {}
                effect => self.said.push((to, effect)),
            }
        }
    }

    /// What waits for the disk of that replica is on it, unless that is slow.
    fn sync(&mut self, at: PlacementId) {
        if self.slow.contains(&at) {
            return;
        }
        let (stored, waiting) = self.disks.get_mut(&at).unwrap();
        let mut last = 0;
        for (number, write) in waiting.drain(..) {
            last = number;
            stored.write(write);
        }
        if last > 0 {
            self.tell(at, Event::Synced(last));
        }
    }

    /// Time passes, in steps in which all are called.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 50 {
            self.now = self.now + 50;
            for placement in self.replicas.keys().copied().collect::<Vec<_>>() {
                self.tell(placement, Event::Tick);
            }
        }
    }

    /// A process ends with what is not synced, and another starts.
    fn restart(&mut self, at: PlacementId) {
        let (stored, waiting) = self.disks.get_mut(&at).unwrap();
        waiting.clear();
        let incarnation = self.replicas[&at].incarnation.next();
        let replica = Replica::recover((at, incarnation), self.settings, stored.clone(), self.now, false);
        self.replicas.insert(at, replica);
        let peer = self.order.peers.iter_mut().find(|peer| peer.placement == at).unwrap();
        peer.incarnation = incarnation;
    }

    fn write(&mut self, to: PlacementId, request: Request) {
        let payload: Payload = request.to_le_bytes().to_vec().into();
        self.tell(to, Event::Write(vec![(request, payload)]));
    }

    fn read(&mut self, at: PlacementId, request: Request, consistency: Consistency) {
        self.tell(at, Event::Read(request, consistency, 0));
    }

    /// How a request ended.
    fn ended(&self, request: Request) -> Option<Result<Answer, Failed>> {
        self.said.iter().find_map(|(_, effect)| match effect {
            Effect::Answer(of, answer) if *of == request => Some(answer.clone()),
            _ => None,
        })
    }

    fn heard(&self, from: PlacementId, effect: &Effect) -> bool {
        self.said.iter().any(|(by, said)| *by == from && said == effect)
    }

    /// The last wish of that replica.
    fn wish(&self, of: PlacementId) -> Option<Wish> {
        self.said.iter().rev().find_map(|(by, said)| match said {
            Effect::Wish(wish) if *by == of => Some(wish.clone()),
            _ => None,
        })
    }

    fn count(&self, is: impl Fn(&Effect) -> bool) -> usize {
        self.said.iter().filter(|(_, effect)| is(effect)).count()
    }
}

fn set(of: &[PlacementId]) -> BTreeSet<PlacementId> {
    of.iter().copied().collect()
}
