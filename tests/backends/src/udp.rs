//! A relay in front of a node that talks UDP: what `link` is for TCP.
//!
//! Others reach the node at the relay's address. Answers go back the way the question came. While it is shut,
//! datagrams are lost in both directions, and so are those of a node that is banned.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

/// A relay. It goes with its handle.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    gate: Arc<Mutex<Gate>>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Gate {
    shut: bool,
    banned: BTreeSet<SocketAddr>,
}

impl Gate {
    fn lets(&self, other: SocketAddr) -> bool {
        !self.shut && !self.banned.contains(&other)
    }
}

impl Relay {
    /// Opens a relay in front of the node that listens at `target`.
    pub async fn open(target: SocketAddr) -> Relay {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let gate = Arc::default();
        let task = tokio::spawn(run(Arc::new(socket), target, Arc::clone(&gate)));
        Relay { address, gate, task }
    }

    /// Where others reach the node through the relay.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loses everything, or nothing again.
    pub fn shut(&self, shut: bool) {
        self.gate.lock().unwrap().shut = shut;
    }

    /// Loses what comes from the node that listens at `other`, or nothing of it again.
    pub fn ban(&self, other: SocketAddr, banned: bool) {
        let mut gate = self.gate.lock().unwrap();
        if banned {
            gate.banned.insert(other)
        } else {
            gate.banned.remove(&other)
        };
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A socket for each sender, so that answers find back to it.
struct Out {
    socket: Arc<UdpSocket>,
    answers: JoinHandle<()>,
}

impl Drop for Out {
    fn drop(&mut self) {
        self.answers.abort();
    }
}

async fn run(socket: Arc<UdpSocket>, target: SocketAddr, gate: Arc<Mutex<Gate>>) {
    let mut ways: BTreeMap<SocketAddr, Out> = BTreeMap::new();
    let mut piece = vec![0; 65_536];
    loop {
        let Ok((bytes, from)) = socket.recv_from(&mut piece).await else { continue };
        if !gate.lock().unwrap().lets(from) {
            continue;
        }
        let way = match ways.entry(from) {
            Entry::Occupied(way) => way.into_mut(),
            Entry::Vacant(new) => {
                let out = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
                out.connect(target).await.unwrap();
                let answers =
                    tokio::spawn(back(Arc::clone(&out), Arc::clone(&socket), from, Arc::clone(&gate)));
                new.insert(Out { socket: out, answers })
            }
        };
        // A node that is gone takes nothing: that is what a test wants to see.
        let _ = way.socket.send(&piece[..bytes]).await;
    }
}

async fn back(out: Arc<UdpSocket>, socket: Arc<UdpSocket>, to: SocketAddr, gate: Arc<Mutex<Gate>>) {
    let mut piece = vec![0; 65_536];
    loop {
        let Ok(bytes) = out.recv(&mut piece).await else { continue };
        if gate.lock().unwrap().lets(to) {
            let _ = socket.send_to(&piece[..bytes], to).await;
        }
    }
}
