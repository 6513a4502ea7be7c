//! Real coordination servers for tests and benches: each on ports and in a folder of its own, stopped with its
//! handle.
//!
//! | file      | what it is                                                          |
//! |-----------|---------------------------------------------------------------------|
//! | `process` | one process: started, signalled, waited for                         |
//! | `certs`   | an authority and its certificates, for TLS                          |
//! | `mariadb` | MariaDB, for the MySQL backend                                      |
//! | `etcd`    | etcd                                                                |
//! | `link`    | a TCP proxy that can be cut, held or slowed, in both directions or in one |
//! | `zookeeper` | ZooKeeper                                                         |
//! | `udp`     | a relay for UDP that can be shut                                    |
//! | `work`    | what goes on while servers are struck, and must fit together afterwards |
//! | `sleeper` | a subscriber that does not listen, and what it costs                |
//!
//! The tests run the conformance suite of `partage-coordination` on each. What is not installed fails the test and
//! names the Debian package: `./test setup` installs them.

#![allow(clippy::unwrap_used, reason = "a harness of tests may stop at the first surprise")]
#![allow(clippy::print_stderr, reason = "a test that fails shows the logs of its processes")]

pub mod certs;
pub mod etcd;
pub mod link;
pub mod mariadb;
pub mod process;
pub mod sleeper;
pub mod udp;
pub mod work;
pub mod zookeeper;

use std::future::Future;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long anything may take before a test gives up: far more than it needs on a machine of its own.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Rest between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Looks until there is something to see, and gives it back. `look` says what it saw instead when there is not.
pub async fn until<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let end = Instant::now() + DEADLINE;
    loop {
        match look().await {
            Ok(seen) => return seen,
            Err(seen) if Instant::now() > end => {
                panic!("{what}: not within {DEADLINE:?}; at last: {seen}")
            }
            Err(_) => sleep(LOOK).await,
        }
    }
}

/// Copies a folder with all that is in it, in place of what is there.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    if to.exists() {
        std::fs::remove_dir_all(to).unwrap();
    }
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (entry, name) = (entry.as_ref().unwrap().path(), entry.as_ref().unwrap().file_name());
        match entry.is_dir() {
            true => copy_folder(&entry, &to.join(name)),
            false => drop(std::fs::copy(&entry, to.join(name)).unwrap()),
        }
    }
}

/// A port on loopback that was free a moment ago, below those that the system gives to others meanwhile.
pub fn free_port() -> u16 {
    let mut ports = (0..200).map(|_| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    let low = |port: u16| 10_000 + port % 20_000;
    ports.find(|port| TcpListener::bind(("127.0.0.1", low(*port))).is_ok()).map(low).unwrap()
}

/// The path of a program, in the folders of `PATH` or where Debian puts servers; else a panic that names the
/// package which has it.
#[expect(clippy::disallowed_methods, reason = "where programs are is a matter of the machine")]
pub fn program(name: &str, package: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} is not installed: `./test setup`, or install the Debian package {package}")
    })
}
