//! Links between nodes, and from nodes to the coordinator, that a test holds in one direction or both: each process connects to
//! the others through proxies of its own (`links.c` leads it there), which pass on what comes, or keep it until they are
//! mended.
//!
//! To both ends this is a network partition: nothing comes, and nobody says that nothing will. What was sent meanwhile comes late
//! if the connection is still wanted then.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The number of the coordinator, after those of the nodes.
pub const COORDINATOR: usize = 3;

/// Nodes and the coordinator.
const ENDS: usize = COORDINATOR + 1;

#[derive(Default)]
struct Valves {
    /// Whether what goes from one to the other is held.
    held: [[AtomicBool; ENDS]; ENDS],
    /// How many pieces of data were.
    count: AtomicUsize,
}

/// The links of three nodes.
pub struct Links {
    library: PathBuf,
    /// For each node, which port stands for which.
    files: PathBuf,
    valves: Arc<Valves>,
}

impl Links {
    /// Builds what leads the nodes through proxies, in files that begin with this name.
    pub fn new(files: PathBuf) -> Links {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/table_histories/links.c");
        let library = files.with_extension("so");
        let mut build = Command::new("cc");
        build.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
        let built = build.output().expect("every build needs a C compiler");
        assert!(built.status.success(), "{built:?}");
        Links { library, files, valves: Arc::default() }
    }

    fn file(&self, node: usize) -> PathBuf {
        self.files.with_extension(node.to_string())
    }

    /// What a node is started with.
    pub fn environment(&self, node: usize) -> Vec<(String, PathBuf)> {
        vec![("LD_PRELOAD".to_owned(), self.library.clone()), ("LINKS".to_owned(), self.file(node))]
    }

    /// Opens a proxy from each node to each other one and to the coordinator, which listen there; counts for processes that
    /// connect from now on.
    pub fn lead_to(&self, addresses: &[String]) {
        assert_eq!(addresses.len(), ENDS);
        for from in 0..COORDINATOR {
            let others = (0..ENDS).filter(|to| *to != from);
            let line = |to: usize| {
                let port = addresses[to].rsplit(':').next().unwrap();
                format!("{port} {}\n", self.proxy((from, to), &addresses[to]))
            };
            std::fs::write(self.file(from), others.map(line).collect::<String>()).unwrap();
        }
    }

    /// Opens one; the port at which it listens.
    fn proxy(&self, (from, to): (usize, usize), address: &str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (address, valves) = (address.to_owned(), Arc::clone(&self.valves));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&address) else { continue };
                // It may have ended already.
                let _ = client.set_nodelay(true).and(server.set_nodelay(true));
                let (back, forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let (there, here) = (Arc::clone(&valves), Arc::clone(&valves));
                std::thread::spawn(move || pass(client, server, &there, (from, to)));
                std::thread::spawn(move || pass(back, forth, &here, (to, from)));
            }
        });
        port
    }

    /// Nothing comes from the one to the other any more.
    pub fn hold(&self, from: usize, to: usize) {
        self.valves.held[from][to].store(true, Ordering::SeqCst);
    }

    /// Ends what [`Links::hold`] began, on all links.
    pub fn mend(&self) {
        self.valves.held.iter().flatten().for_each(|held| held.store(false, Ordering::SeqCst));
    }

    /// How many pieces of data had to wait.
    pub fn held(&self) -> usize {
        self.valves.count.load(Ordering::SeqCst)
    }
}

/// Passes on what comes, to the end of the connection.
fn pass(mut from: TcpStream, mut to: TcpStream, valves: &Valves, (one, other): (usize, usize)) {
    let held = &valves.held[one][other];
    let mut piece = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        valves.count.fetch_add(usize::from(held.load(Ordering::SeqCst)), Ordering::SeqCst);
        while held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
