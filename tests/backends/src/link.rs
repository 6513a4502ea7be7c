//! A link between two processes: a TCP proxy whose two directions a test can delay or stop.
//!
//! | state   | bytes that way                                   | new connections                       |
//! |---------|--------------------------------------------------|---------------------------------------|
//! | `Open`  | go through, after [`Link::delay`]                | are made                              |
//! | `Held`  | wait in the proxy and in the sockets before it   | are taken; whoever made them waits    |
//!
//! A link that is held is what a network partition looks like to both ends: nothing comes, and no error says that nothing will.
//! [`Link::cut`] breaks connections as well, as a dying switch with RSTs would.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A direction in which bytes go through a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the end that connected to the end that listens.
    There,
    /// From the end that listens to the end that connected.
    Back,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Valves {
    hold_there: bool,
    hold_back: bool,
    /// Counts cuts: connections from before the last one are broken.
    cuts: u64,
    delay: Duration,
}

impl Valves {
    fn holds(&self, way: Way) -> bool {
        match way {
            Way::There => self.hold_there,
            Way::Back => self.hold_back,
        }
    }
}

/// A proxy on an address of its own. It goes with its handle.
#[derive(Debug)]
pub struct Link {
    address: String,
    valves: Arc<watch::Sender<Valves>>,
    carried: Arc<Carried>,
    task: JoinHandle<()>,
}

/// Bytes that have gone through.
#[derive(Debug, Default)]
struct Carried {
    there: AtomicU64,
    back: AtomicU64,
}

impl Carried {
    fn of(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::There => &self.there,
            Way::Back => &self.back,
        }
    }
}

impl Link {
    /// From `listen` to `target`.
    pub async fn open(listen: &str, target: &str) -> Link {
        let listener = TcpListener::bind(listen).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let valves = Arc::new(watch::Sender::new(Valves::default()));
        let carried = Arc::new(Carried::default());
        let task = tokio::spawn(run(listener, target.to_owned(), valves.clone(), carried.clone()));
        Link { address, valves, carried, task }
    }

    /// How many bytes have gone that way so far.
    pub fn carried(&self, way: Way) -> u64 {
        self.carried.of(way).load(Ordering::Relaxed)
    }

    /// Where the link listens, `host:port`: one end connects there, and so reaches the target.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Holds everything that goes that way.
    pub fn hold(&self, way: Way) {
        self.valves.send_modify(|valves| match way {
            Way::There => valves.hold_there = true,
            Way::Back => valves.hold_back = true,
        });
    }

    /// Breaks every connection, and holds both ways.
    pub fn cut(&self) {
        self.valves.send_modify(|valves| {
            *valves = Valves { hold_there: true, hold_back: true, cuts: valves.cuts + 1, ..*valves };
        });
    }

    /// Each piece of data takes that much longer.
    pub fn delay(&self, delay: Duration) {
        self.valves.send_modify(|valves| valves.delay = delay);
    }

    /// Everything goes through again.
    pub fn mend(&self) {
        self.valves.send_modify(|valves| *valves = Valves { cuts: valves.cuts, ..Valves::default() });
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(
    listener: TcpListener,
    target: String,
    valves: Arc<watch::Sender<Valves>>,
    carried: Arc<Carried>,
) {
    loop {
        let Ok((from, _)) = listener.accept().await else { continue };
        tokio::spawn(carry(from, target.clone(), valves.subscribe(), carried.clone()));
    }
}

/// One connection, until an end closes it or the link is cut.
async fn carry(from: TcpStream, target: String, valves: watch::Receiver<Valves>, carried: Arc<Carried>) {
    let mut cut = valves.clone();
    let cuts = valves.borrow().cuts;
    let mut before = valves.clone();
    // When the link is gone, so is the connection.
    let open = before.wait_for(|now| !now.hold_there).await.is_ok();
    let Ok(to) = TcpStream::connect(&target).await else { return };
    if !open {
        return;
    }
    // A link adds nothing of its own: without this, small messages would wait for each other's receipts.
    if from.set_nodelay(true).and(to.set_nodelay(true)).is_err() {
        return;
    }
    let (from_read, from_write) = from.into_split();
    let (to_read, to_write) = to.into_split();
    tokio::select! {
        () = pump(from_read, to_write, Way::There, valves.clone(), &carried) => {}
        () = pump(to_read, from_write, Way::Back, valves, &carried) => {}
        _ = cut.wait_for(|now| now.cuts > cuts) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: Way,
    mut valves: watch::Receiver<Valves>,
    carried: &Carried,
) {
    let mut piece = vec![0; 64 << 10];
    loop {
        let Ok(bytes @ 1..) = from.read(&mut piece).await else { return };
        let delay = valves.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if valves.wait_for(|now| !now.holds(way)).await.is_err()
            || to.write_all(&piece[..bytes]).await.is_err()
        {
            return;
        }
        carried.of(way).fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
