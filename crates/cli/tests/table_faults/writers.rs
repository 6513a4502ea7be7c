//! Clients that write rows, and know which writes were acknowledged.

use crate::cluster::{Cluster, Rows, ask, coded, noise};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that write rows of a table, each key once, until they are stopped.
pub struct Writers {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Rows>>,
    count: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    /// Begins to write values of so many bytes through these nodes.
    pub fn start(cluster: &Cluster, table: &str, nodes: &[usize], bytes: usize) -> Writers {
        let mut writers = Writers {
            stop: Arc::default(),
            acknowledged: Arc::default(),
            count: Arc::default(),
            threads: Vec::new(),
        };
        for thread in 0..4_u64 {
            let node = nodes[thread as usize % nodes.len()];
            let (address, table) = (cluster.nodes[node].address.clone(), table.to_owned());
            let (stop, acknowledged, count) =
                (Arc::clone(&writers.stop), Arc::clone(&writers.acknowledged), Arc::clone(&writers.count));
            let write = move || {
                for number in (0_u64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let key = format!("{thread}-{number:06}").into_bytes();
                    let value = noise(number * 4 + thread, bytes);
                    let path = format!("/v1/tables/{table}/keys/{}", coded(&key));
                    match ask(&address, "PUT", &path, &[], &value) {
                        Ok(answer) if answer.status == 204 => {
                            acknowledged.lock().unwrap().insert(key, value);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        // It may be written or not.
                        _ => std::thread::sleep(Duration::from_millis(50)),
                    }
                }
            };
            writers.threads.push(std::thread::spawn(write));
        }
        writers
    }

    /// How many writes were acknowledged.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Ends them; says what was acknowledged.
    pub fn stop(mut self) -> Rows {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        std::mem::take(&mut *self.acknowledged.lock().unwrap())
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Each of these rows is in the table as it was acknowledged.
#[track_caller]
pub fn are_there(cluster: &Cluster, table: &str, acknowledged: &Rows) {
    let rows = cluster.rows(table);
    for (key, value) in acknowledged {
        assert!(rows.get(key) == Some(value), "{} is lost or another", String::from_utf8_lossy(key));
    }
}

/// The table that no writer writes.
const QUIET: &str = "quiet";

/// D9: a second table, beside the one that is written and ill-treated, and its rows as they were at first.
pub struct Quiet(Rows);

impl Quiet {
    /// Creates it and puts its rows.
    pub fn start(cluster: &Cluster) -> Quiet {
        cluster.create(&[QUIET, "--shards", "3"]);
        let row = |number: u64| (format!("q{number:02}").into_bytes(), noise(number, 100));
        let rows: Rows = (0..60).map(row).collect();
        rows.iter().for_each(|(key, value)| cluster.put(QUIET, key, "", value));
        Quiet(rows)
    }

    /// It has these rows, no more, and each of its replicas has the same.
    #[track_caller]
    pub fn is_unchanged(&self, cluster: &Cluster) {
        assert!(cluster.rows(QUIET) == self.0, "D9: a table that nobody wrote has other rows");
        cluster.nothing_differs(QUIET);
    }
}
