//! Reading many znodes as they were at one moment.
//!
//! ZooKeeper answers one request with many reads (`multiRead`, since 3.6) from one state of the server. What does not fit
//! in one request is read twice: a znode that was touched in between says so, and if none was, nothing changed from the
//! end of the first pass to the beginning of the second. A tree is complete when every znode that was read has
//! as many children among those that were read as it says it has.

use std::collections::{BTreeMap, BTreeSet};

use zookeeper_client::{Client, Error as Fault, MultiReadResult};

use super::connection::Connection;
use super::node::{MARKS, Node, ancestors, anchor, version};
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::limits::{ZOOKEEPER_MAX_REQUEST_BYTES, ZOOKEEPER_READ_ROUNDS};
use crate::transaction::{Entry, Version};

/// Bytes of one read in a request, beside its path.
const READ_BYTES: usize = 16;

/// What was there at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// The root's data version.
    pub clock: i32,
    /// The root's last commit.
    pub committed: Version,
    /// The last change of what lies right below the root.
    root_children_changed: Version,
    /// Without the one that marks are in.
    root_children: usize,
    /// What was asked for and is there.
    pub nodes: BTreeMap<Key, Node>,
}

impl Snapshot {
    /// The newest change that can be seen in it.
    pub fn at(&self) -> Version {
        self.committed.max(self.newest())
    }

    /// The newest change of the znodes in it: what was set, or what came or went right below one of them.
    pub fn newest(&self) -> Version {
        let nodes = self.nodes.values().map(|node| node.changed.max(node.children_changed));
        nodes.max().unwrap_or(Version::ZERO).max(self.root_children_changed)
    }

    /// The keys of the scope in it, in order.
    pub fn entries(&self, scope: &Scope) -> Result<Vec<(Key, Entry)>> {
        let mut entries = Vec::new();
        for (key, node) in self.nodes.iter().filter(|(key, _)| scope.contains(key)) {
            if let Some(entry) = node.entry(key)? {
                entries.push((key.clone(), entry));
            }
        }
        Ok(entries)
    }
}

/// Reads these znodes; with `sync`, not older than the call's beginning.
pub(super) async fn read_nodes(
    connection: &Connection,
    client: &Client,
    keys: &BTreeSet<Key>,
    sync: bool,
) -> Result<Snapshot> {
    let requests = requests(connection, keys);
    let mut before = read_pass(connection, client, &requests, sync).await?;
    if requests.len() == 1 {
        return Ok(before);
    }
    for _ in 0..ZOOKEEPER_READ_ROUNDS {
        let now = read_pass(connection, client, &requests, false).await?;
        if now == before {
            return Ok(now);
        }
        before = now;
    }
    Err(too_busy(connection))
}

/// Reads the whole scope, its ancestors, and the keys `known`, which save a round trip.
pub(super) async fn read_scope(
    connection: &Connection,
    client: &Client,
    scope: &Scope,
    known: impl IntoIterator<Item = Key>,
    sync: bool,
) -> Result<Snapshot> {
    let mut base: BTreeSet<Key> = known.into_iter().collect();
    if let Some(key) = anchor(scope) {
        base.extend(ancestors(key).chain([key.clone()]));
    }
    let mut keys = base.clone();
    for round in 0..ZOOKEEPER_READ_ROUNDS {
        let snapshot = read_nodes(connection, client, &keys, sync && round == 0).await?;
        let open = open_parents(&snapshot, scope);
        if open.is_empty() {
            return Ok(snapshot);
        }
        keys = snapshot.nodes.into_keys().chain(base.iter().cloned()).collect();
        keys.extend(children(connection, client, &open).await?);
    }
    Err(too_busy(connection))
}

/// Parents whose children belong to the scope and were not all read. `None` is the root.
fn open_parents(snapshot: &Snapshot, scope: &Scope) -> Vec<Option<Key>> {
    let mut read: BTreeMap<Option<Key>, usize> = BTreeMap::new();
    for key in snapshot.nodes.keys() {
        *read.entry(key.parent()).or_default() += 1;
    }
    let matters = |parent: Option<&Key>| match (scope, parent) {
        (Scope::All, _) => true,
        (Scope::Below(top), Some(parent)) => parent == top || parent.is_below(top),
        (Scope::Children(top), Some(parent)) => parent == top,
        _ => false,
    };
    let nodes = snapshot.nodes.iter().map(|(key, node)| (Some(key.clone()), node.children));
    let all = nodes.chain([(None, snapshot.root_children)]);
    all.filter(|(parent, count)| matters(parent.as_ref()) && *count > read.get(parent).copied().unwrap_or(0))
        .map(|(parent, _)| parent)
        .collect()
}

async fn children(connection: &Connection, client: &Client, parents: &[Option<Key>]) -> Result<Vec<Key>> {
    let root = connection.root();
    let mut found = Vec::new();
    for parents in parents.chunks(ZOOKEEPER_MAX_REQUEST_BYTES / (2 << 10)) {
        let mut reader = client.new_multi_reader();
        for parent in parents {
            let path = parent.as_ref().map_or_else(|| root.as_str().to_owned(), |key| root.path(key));
            reader.add_get_children(&path).map_err(|fault| connection.refusal(&fault, &path))?;
        }
        let results = reader.commit().await.map_err(|fault| connection.refusal(&fault, root.as_str()))?;
        for (parent, result) in parents.iter().zip(results) {
            let names = match result {
                MultiReadResult::Children { mut children } => {
                    children.retain(|name| parent.is_some() || name != MARKS);
                    children
                }
                // It went a moment ago.
                MultiReadResult::Error { err: Fault::NoNode } => Vec::new(),
                other => return Err(unexpected(connection, parent.as_ref(), other)),
            };
            for name in names {
                let path = parent.as_ref().map_or_else(|| name.clone(), |parent| format!("{parent}/{name}"));
                found.push(Key::new(&path).map_err(|error| Error::Invalid {
                    what: format!("{}: a znode that is not ours: {error}", connection.target()),
                })?);
            }
        }
    }
    Ok(found)
}

/// As many keys to a request as fit.
fn requests(connection: &Connection, keys: &BTreeSet<Key>) -> Vec<Vec<Key>> {
    let (mut requests, mut bytes) = (vec![Vec::new()], 0);
    for key in keys {
        bytes += READ_BYTES + connection.root().as_str().len() + 1 + key.as_str().len();
        if bytes > ZOOKEEPER_MAX_REQUEST_BYTES {
            requests.push(Vec::new());
            bytes = 0;
        }
        if let Some(request) = requests.last_mut() {
            request.push(key.clone());
        }
    }
    requests
}

/// One pass over all, in as many requests as needed. Consistent only if it is one, or if a second pass is equal.
async fn read_pass(
    connection: &Connection,
    client: &Client,
    requests: &[Vec<Key>],
    sync: bool,
) -> Result<Snapshot> {
    let root = connection.root();
    let mut nodes = BTreeMap::new();
    let (mut seen_root, mut has_marks) = (None, false);
    for (number, keys) in requests.iter().enumerate() {
        let mut reader = client.new_multi_reader();
        let own = [root.as_str(), root.marks()].map(str::to_owned);
        for path in own.into_iter().chain(keys.iter().map(|key| root.path(key))) {
            reader.add_get_data(&path).map_err(|fault| connection.refusal(&fault, &path))?;
        }
        // Both are sent before either is answered: one round trip, and ZooKeeper keeps their order.
        let synced = (sync && number == 0).then(|| client.sync(root.as_str()));
        let reading = reader.commit();
        let lost = |fault: Fault| connection.refusal(&fault, root.as_str());
        if let Some(synced) = synced {
            synced.await.map_err(lost)?;
        }
        let mut results = reading.await.map_err(lost)?.into_iter();
        let stat = match results.next() {
            Some(MultiReadResult::Data { stat, .. }) => stat,
            Some(other) => return Err(unexpected(connection, None, other)),
            None => {
                return Err(Error::Unavailable { what: format!("{}: an empty answer", connection.target()) });
            }
        };
        seen_root = Some(stat);
        has_marks = matches!(results.next(), Some(MultiReadResult::Data { .. }));
        for (key, result) in keys.iter().zip(results) {
            match result {
                MultiReadResult::Data { data, stat } => {
                    nodes.insert(key.clone(), Node::read(data, &stat));
                }
                MultiReadResult::Error { err: Fault::NoNode } => {}
                other => return Err(unexpected(connection, Some(key), other)),
            }
        }
    }
    let stat = seen_root.ok_or_else(|| too_busy(connection))?;
    Ok(Snapshot {
        clock: stat.version,
        committed: version(stat.mzxid),
        root_children_changed: version(stat.pzxid),
        root_children: usize::try_from(stat.num_children).unwrap_or(0).saturating_sub(has_marks.into()),
        nodes,
    })
}

fn unexpected(connection: &Connection, key: Option<&Key>, result: MultiReadResult) -> Error {
    let root = connection.root();
    let path = key.map_or_else(|| root.as_str().to_owned(), |key| root.path(key));
    match result {
        MultiReadResult::Error { err } => connection.refusal(&err, &path),
        _ => Error::Unavailable { what: format!("{}: an answer of the wrong kind", connection.target()) },
    }
}

fn too_busy(connection: &Connection) -> Error {
    let what = format!("{} changes faster than it can be read", connection.target());
    Error::Unavailable { what }
}
