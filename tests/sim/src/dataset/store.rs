//! The coordination service: ephemeral keys of sessions, and a log from which mirrors are fed.

use partage_service::dataset::Address;
use partage_service::dataset::node::{Key, Layout, News, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A key, and the node that it is of.
pub type Named = (Address, Key);

/// A simulated coordination service: the ephemeral keys of sessions, and a log from which mirrors are fed.
#[derive(Debug, Default)]
pub struct Store {
    keys: BTreeMap<Named, (Value, u64)>,
    sessions: BTreeMap<u64, u64>,
    next: u64,
    log: Vec<(Named, Option<Value>)>,
}

impl Store {
    /// A session that ends then, unless it is renewed.
    pub fn open(&mut self, until: u64) -> u64 {
        self.next += 1;
        self.sessions.insert(self.next, until);
        self.next
    }

    /// Whether the session is there still.
    pub fn renew(&mut self, session: u64, until: u64) -> bool {
        self.sessions.get_mut(&session).map(|end| *end = until).is_some()
    }

    /// Ends what is over.
    pub fn expire(&mut self, now: u64) {
        let over: Vec<u64> =
            self.sessions.iter().filter(|(_, until)| **until <= now).map(|(s, _)| *s).collect();
        over.into_iter().for_each(|session| self.end(session));
    }

    /// Ends a session, with its keys.
    pub fn end(&mut self, session: u64) {
        self.sessions.remove(&session);
        let gone: Vec<Named> =
            self.keys.iter().filter(|(_, (_, of))| *of == session).map(|(named, _)| named.clone()).collect();
        for named in gone {
            self.keys.remove(&named);
            self.log.push((named, None));
        }
    }

    /// Ends all sessions at once, as a service does that has lost them.
    pub fn forget(&mut self) {
        for session in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.end(session);
        }
    }

    /// Puts or deletes a key in a session; false when that is over.
    pub fn write(&mut self, session: u64, named: Named, value: Option<Value>) -> bool {
        if !self.sessions.contains_key(&session) {
            return false;
        }
        match &value {
            Some(value) => drop(self.keys.insert(named.clone(), (value.clone(), session))),
            None => drop(self.keys.remove(&named)),
        }
        self.log.push((named, value));
        true
    }

    /// Puts in a session all that a node has of a version, which is one key of the service: the mirrors tell of what has
    /// changed in it.
    pub fn write_held(
        &mut self,
        session: u64,
        of_version: impl Fn(u32) -> Named,
        held: Option<(Layout, BTreeSet<u32>)>,
    ) {
        if !self.sessions.contains_key(&session) {
            return;
        }
        let (value, partitions) = match held {
            Some((layout, partitions)) => (Some(Value::Layout(layout)), partitions),
            None => (None, BTreeSet::new()),
        };
        let is_gone = |named: &&Named| match &named.1 {
            Key::Partition(_, _, partition) => {
                **named == of_version(*partition) && !partitions.contains(partition)
            }
            Key::Node | Key::Pin(_) => false,
        };
        for named in self.keys.keys().filter(is_gone).cloned().collect::<Vec<_>>() {
            self.write(session, named, None);
        }
        for named in partitions.iter().map(|partition| of_version(*partition)) {
            match self.keys.get_mut(&named) {
                Some((known, owner)) if Some(&*known) == value.as_ref() => *owner = session,
                Some(_) | None => drop(self.write(session, named, value.clone())),
            }
        }
    }

    /// Where the log ends.
    pub fn end_of_log(&self) -> usize {
        self.log.len()
    }

    /// What has changed since a place in the log, up to another.
    pub fn since(&self, from: usize, to: usize) -> &[(Named, Option<Value>)] {
        &self.log[from..to]
    }

    /// All that there is.
    pub fn content(&self) -> Vec<(Named, Option<Value>)> {
        self.keys.iter().map(|(named, (value, _))| (named.clone(), Some(value.clone()))).collect()
    }
}

/// The change as a node hears of it.
pub fn news(((address, key), value): &(Named, Option<Value>)) -> News {
    match (key, value) {
        (Key::Node, Some(Value::Claim(claim))) => News::Node(address.clone(), Some(*claim)),
        (Key::Pin(dataset), Some(Value::Pin(pin))) => {
            News::Pin(dataset.clone(), address.clone(), Some(pin.clone()))
        }
        (Key::Node, _) => News::Node(address.clone(), None),
        (Key::Pin(dataset), _) => News::Pin(dataset.clone(), address.clone(), None),
        (Key::Partition(dataset, version, partition), value) => News::Partition {
            dataset: dataset.clone(),
            version: version.clone(),
            partition: *partition,
            address: address.clone(),
            layout: match value {
                Some(Value::Layout(layout)) => Some(*layout),
                _ => None,
            },
        },
    }
}
