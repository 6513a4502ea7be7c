//! The floor: what three logs and three engines cost that are fed rows over sockets, without a protocol; and, for reads, a
//! server that looks at nothing but the number of requests.
//!
//! ```text
//!  client ─┬─► node 1: all that has come is one group: one synced write of the log, applied to the engine, answered
//!          ├─► node 2: the same
//!          └─► node 3: the same; the client waits for all three
//! ```
//!
//! A row is its key and its value, nothing else; the answer is a byte for each. A thread of each node flushes and compacts, as
//! in a node of tables. There is no order between nodes, no leader, and nothing is read.
//!
//! For one write after the other, a client asks one node, which sends the row to the other two ([`start_chain`]).

use crate::rows::{KEY_BYTES, VALUE_BYTES, value};
use crate::{Done, Run, resp};
use bench_gauge::client::Protocol;
use bench_gauge::{Running, free, myself};
use partage_core::base::id::{Epoch, PlacementId, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::limits::FLUSH_BYTES;
use partage_engine::replica::{Change, Engine, Store, TreeEngine, TreeStore};
use partage_journal::RealDisk;
use partage_log::{Log, LogSettings, Record};
use partage_service::table::replication::{Entry, EntryKind, LogPosition, LogWrite};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Bytes of a row, as it is sent.
const ROW_BYTES: usize = KEY_BYTES + VALUE_BYTES;

/// What a table's entry has beside key and value: version, time, counts, lengths, condition, expiry.
const AROUND_BYTES: usize = 29;

/// Rows, made by `ask`, each answered with a byte.
pub fn rows<'a>(ask: &'a dyn Fn(&mut Vec<u8>, &mut bench_gauge::client::Draw, usize)) -> Protocol<'a> {
    Protocol { ask, begins: b".", length: &|bytes| (!bytes.is_empty()).then_some(1), greet: &|_| Ok(()) }
}

/// Starts three nodes of the floor, and waits until each listens.
pub fn start(run: &Run) -> Result<Vec<Running>> {
    let mut nodes = Vec::new();
    for number in 0..crate::cluster::NODES {
        let at = free()?;
        let mut command = myself()?;
        command.arg("floor-node").arg(at.to_string()).arg(run.folder(&format!("floor-{number}"))?);
        nodes.push(Running::start(&mut command, at)?);
    }
    Ok(nodes)
}

/// Starts two nodes, and one before them: a row that it is sent is on all three disks when it answers. That one is the first.
pub fn start_chain(run: &Run) -> Result<Vec<Running>> {
    let mut nodes = start(run)?;
    drop(nodes.remove(0));
    let at = free()?;
    let mut command = myself()?;
    command.arg("floor-leader").arg(at.to_string()).arg(run.folder("floor-leader")?);
    command.args(nodes.iter().map(|follower| follower.at.to_string()));
    nodes.insert(0, Running::start(&mut command, at)?);
    Ok(nodes)
}

/// What the process of the node before two others does, for one client: it sends each row on, writes its own log meanwhile, and
/// waits for both.
pub fn leader(words: &[String]) -> Done {
    let [_, at, folder, followers @ ..] = words else {
        return Err("floor-leader ADDRESS FOLDER FOLLOWER...".into());
    };
    let connect = |at: &String| -> Result<TcpStream> {
        let stream = TcpStream::connect(at)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    let mut followers = followers.iter().map(connect).collect::<Result<Vec<_>>>()?;
    let (mut node, listener) = (Node::open(Path::new(folder))?, TcpListener::bind(at)?);
    let (mut row, mut answer) = ([0; ROW_BYTES], [0; 1]);
    // The first connection asks whether the process has started.
    for client in listener.incoming() {
        let mut client = client?;
        client.set_nodelay(true)?;
        while client.read_exact(&mut row).is_ok() {
            followers.iter_mut().try_for_each(|follower| follower.write_all(&row))?;
            node.write(&[&row])?;
            followers.iter_mut().try_for_each(|follower| follower.read_exact(&mut answer))?;
            client.write_all(b".")?;
        }
    }
    Ok(())
}

/// What the process of a node does.
pub fn node(words: &[String]) -> Done {
    let [_, at, folder] = words else { return Err("floor-node ADDRESS FOLDER".into()) };
    let mut node = Node::open(Path::new(folder))?;
    let mut lines = Lines::listen(at.parse()?)?;
    loop {
        lines.read()?;
        let rows: Vec<&[u8]> = lines.0.iter().flatten().flat_map(|line| line.rows()).collect();
        if !rows.is_empty() {
            node.write(&rows)?;
        }
        lines.answer_rows();
    }
}

struct Node {
    log: Log,
    store: Arc<TreeStore>,
    replica: ReplicaKey,
    flush: SyncSender<()>,
    flushed: Receiver<LogPosition>,
    is_flushing: bool,
}

impl Node {
    fn open(folder: &Path) -> std::result::Result<Node, Box<dyn std::error::Error>> {
        let (log, _) = Log::open(Arc::new(RealDisk), &folder.join("log"), LogSettings::default())?;
        let store = Arc::new(TreeEngine::default().open(&folder.join("rows"))?);
        let (flush, flushes) = sync_channel(1);
        let (flushed, positions) = sync_channel(1);
        let flushing = Arc::clone(&store);
        std::thread::Builder::new().name("floor-storage".to_owned()).spawn(move || {
            tend(&flushing, &flushes, &flushed);
        })?;
        let keyspace = KeyspaceName::new("bench")?;
        let replica = ReplicaKey { keyspace, shard: ShardId(1), placement: PlacementId(1) };
        Ok(Node { log, store, replica, flush, flushed: positions, is_flushing: false })
    }

    fn write(&mut self, rows: &[&[u8]]) -> Done {
        let before = self.store.applied();
        let entry = |(row, index): (&&[u8], u64)| {
            let mut payload = Vec::with_capacity(AROUND_BYTES + ROW_BYTES);
            payload.extend_from_slice(&[0; AROUND_BYTES]);
            payload.extend_from_slice(row);
            let position = LogPosition { epoch: Epoch(1), index };
            Entry { position, kind: EntryKind::Write(payload.into()) }
        };
        let entries: Vec<Entry> = rows.iter().zip(before.index + 1..).map(entry).collect();
        let mut group = vec![(self.replica.clone(), Record::Write(LogWrite::Append(entries)))];
        if let Ok(position) = self.flushed.try_recv() {
            self.is_flushing = false;
            group.push((self.replica.clone(), Record::Write(LogWrite::Trim(position))));
        }
        self.log.write(&group)?;
        if self.log.can_reclaim() {
            self.log.reclaim()?;
        }
        let changes: Vec<Change<'_>> = rows
            .iter()
            .map(|row| Change { key: &row[..KEY_BYTES], value: Some(&row[KEY_BYTES..]) })
            .collect();
        let after = LogPosition { epoch: Epoch(1), index: before.index + rows.len() as u64 };
        self.store.apply(before, after, &changes)?;
        if self.store.unflushed_bytes() >= FLUSH_BYTES && !self.is_flushing {
            self.is_flushing = true;
            self.flush.send(())?;
        }
        Ok(())
    }
}

/// Flushes when it is asked to, and compacts.
fn tend(store: &TreeStore, flushes: &Receiver<()>, flushed: &SyncSender<LogPosition>) {
    while flushes.recv().is_ok() {
        let Ok(position) = store.flush() else { return };
        if flushed.send(position).is_err() {
            return;
        }
        while matches!(store.compact(), Ok(true)) {}
    }
}

/// Starts the server for reads.
pub fn start_reader() -> Result<Running> {
    let at = free()?;
    Running::start(myself()?.arg("floor-reader").arg(at.to_string()), at)
}

/// What its process does: as many answers as `GET`s have come.
pub fn reader(words: &[String]) -> Done {
    let [_, at] = words else { return Err("floor-reader ADDRESS".into()) };
    let mut lines = Lines::listen(at.parse()?)?;
    let mut one = Vec::new();
    resp::found(&mut one, &value(0));
    let mut out = Vec::new();
    loop {
        lines.read()?;
        for line in lines.0.iter_mut().filter(|line| line.as_ref().is_some_and(|line| !line.input.is_empty()))
        {
            let Some(open) = line else { continue };
            let asked = open.input.len() / resp::GET_BYTES;
            open.input.drain(..asked * resp::GET_BYTES);
            out.clear();
            (0..asked).for_each(|_| out.extend_from_slice(&one));
            if open.stream.write_all(&out).is_err() {
                *line = None;
            }
        }
    }
}

struct Line {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Line {
    /// The whole rows that have come.
    fn rows(&self) -> impl Iterator<Item = &[u8]> {
        self.input.chunks_exact(ROW_BYTES)
    }
}

/// All connections of a node, by the numbers that the poll tells, and the poll.
struct Lines(Vec<Option<Line>>, Poll);

struct Poll {
    listener: TcpListener,
    poll: OwnedFd,
    buffer: Vec<u8>,
}

impl Lines {
    fn listen(at: SocketAddr) -> Result<Lines> {
        let (listener, poll) = (TcpListener::bind(at)?, epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&poll, &listener, EventData::new_u64(u64::MAX), EventFlags::IN)?;
        Ok(Lines(Vec::new(), Poll { listener, poll, buffer: vec![0; 1 << 16] }))
    }

    /// Waits until something comes, and reads all that has come.
    fn read(&mut self) -> Result<()> {
        let Lines(lines, Poll { listener, poll, buffer }) = self;
        let mut events = Vec::with_capacity(256);
        epoll::wait(&*poll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let number = event.data.u64();
            if number == u64::MAX {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                epoll::add(&*poll, &stream, EventData::new_u64(lines.len() as u64), EventFlags::IN)?;
                lines.push(Some(Line { stream, input: Vec::new() }));
                continue;
            }
            let Some(line) = &mut lines[number as usize] else { continue };
            match line.stream.read(buffer) {
                Ok(read) if read > 0 => line.input.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // To drop the connection takes it out of the poll.
                _ => lines[number as usize] = None,
            }
        }
        Ok(())
    }

    /// A byte for each whole row, which is done.
    fn answer_rows(&mut self) {
        for line in &mut self.0 {
            let Some(open) = line else { continue };
            let rows = open.input.len() / ROW_BYTES;
            open.input.drain(..rows * ROW_BYTES);
            if rows > 0 && open.stream.write_all(&vec![b'.'; rows]).is_err() {
                *line = None;
            }
        }
    }
}
