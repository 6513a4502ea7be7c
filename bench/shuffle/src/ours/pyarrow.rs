//! Clients of Arrow Flight: processes of `clients.py` that have pyarrow and nothing of ours. Four write the rows, one reads all
//! partitions in order and checks them.

use super::cluster::Cluster;
use super::shuffle::follow;
use crate::client_process::ClientProcess;
use crate::floor::Way;
use crate::{Got, Run};
use bench_gauge::{core_seconds_ever_of, now};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The clients, and what installs pyarrow for them.
const SCRIPTS: [(&str, &str); 2] =
    [("clients.py", include_str!("../../clients.py")), ("peers.py", include_str!("../../peers.py"))];
/// The number of processes that write.
const WRITERS: u64 = 4;
/// The handle by which clients know the floor.
const FLOOR: &str = "-";

/// What is written, and how it is read.
#[derive(Debug, Clone, Copy)]
pub struct RowsJob {
    /// The name of the rows in `clients.py`.
    pub input: &'static str,
    /// The number of all rows.
    pub rows: u64,
    /// Input partitions: each is one attempt.
    pub inputs: u64,
    /// Partitions that are read.
    pub partitions: u64,
    /// Whether the rows are made before anything is measured; else as they are written.
    pub is_made: bool,
}

/// What one run took, its clients included.
#[derive(Debug, Clone, Copy)]
pub struct RowsTook {
    /// Core-seconds until all is written; the seal is a part of reading.
    pub writing: f64,
    /// Core-seconds from then until all is read.
    pub reading: f64,
    /// Seconds by the clock for both.
    pub wall_seconds: f64,
    /// Bytes of the rows, as Arrow has them in memory; 0: they were not made before.
    pub bytes: u64,
}

impl RowsTook {
    /// Core-seconds to write, seal and read.
    pub fn all(&self) -> f64 {
        self.writing + self.reading
    }
}

/// A Python that has pyarrow, and the script.
#[derive(Debug)]
pub struct Pyarrow {
    python: PathBuf,
    script: PathBuf,
}

impl Pyarrow {
    /// Installs it into an environment in the folder of the run.
    pub fn install(run: &Run) -> Got<Pyarrow> {
        for (name, text) in SCRIPTS {
            std::fs::write(run.of.place().join(name), text)?;
        }
        let script = run.of.place().join("clients.py");
        let mut command = Command::new("python3");
        command.arg(&script).arg("install").arg(run.of.place().join("venv-pyarrow"));
        // The script gives up by itself what takes long.
        let done = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        if !done.status.success() {
            return Err("pyarrow is not there for the clients: see above".into());
        }
        let python = String::from_utf8(done.stdout)?;
        Ok(Pyarrow { python: PathBuf::from(python.trim()), script })
    }

    fn start(&self, words: &[&str]) -> Got<(ClientProcess, String)> {
        let mut command = Command::new(&self.python);
        Ok(ClientProcess::start(command.arg(&self.script).args(words))?)
    }

    /// One shuffle of the pool, from its start until nothing is left of it.
    pub fn shuffle(&self, cluster: &Cluster, job: &RowsJob, is_deep: bool) -> Got<RowsTook> {
        let nodes = cluster.addresses_word(Way::Tcp);
        let (_starter, handle) = self.start(&["start", &nodes, job.input, &job.partitions.to_string()])?;
        let took = self.run((&nodes, &handle), job, is_deep, &|| cluster.core_seconds())?;
        let (_deleter, _) = self.start(&["delete", &nodes, &handle])?;
        cluster.is_empty()?;
        Ok(took)
    }

    /// The same rows in and out of the floor; `servers` tells core-seconds.
    pub fn floor(
        &self,
        at: SocketAddr,
        job: &RowsJob,
        is_deep: bool,
        servers: &dyn Fn() -> f64,
    ) -> Got<RowsTook> {
        self.run((&at.to_string(), FLOOR), job, is_deep, servers)
    }

    fn run(
        &self,
        (nodes, handle): (&str, &str),
        job: &RowsJob,
        is_deep: bool,
        servers: &dyn Fn() -> f64,
    ) -> Got<RowsTook> {
        let numbers = [job.rows, job.inputs, job.partitions].map(|number| number.to_string());
        let [rows, inputs, partitions] = &numbers;
        let made = if job.is_made { "before" } else { "within" };
        let (mut writers, mut bytes) = (Vec::new(), 0);
        for number in 0..WRITERS {
            let part = format!("{number}/{WRITERS}");
            let words = ["write", nodes, handle, job.input, rows, inputs, made, &part];
            let (writer, line) = self.start(&words)?;
            bytes += made_bytes(&line).ok_or("a writer says what is not understood")?;
            writers.push(writer);
        }
        let deep = if is_deep { "1" } else { "0" };
        let words = ["read", nodes, handle, job.input, rows, inputs, partitions, deep];
        let (mut reader, _) = self.start(&words)?;
        let pids: Vec<u32> = writers.iter().chain([&reader]).map(ClientProcess::pid).collect();
        let core_seconds = || servers() + pids.iter().map(|pid| core_seconds_ever_of(*pid)).sum::<f64>();
        let (begun, begin) = (core_seconds(), now());
        writers.iter_mut().try_for_each(ClientProcess::go)?;
        for writer in &mut writers {
            follow(writer, "whole ", &mut |_| Ok(()))?;
        }
        let stored = core_seconds();
        reader.go()?;
        follow(&mut reader, "read ", &mut |_| Ok(()))?;
        let (done, wall_seconds) = (core_seconds(), (now() - begin).as_secs_f64());
        Ok(RowsTook { writing: stored - begun, reading: done - stored, wall_seconds, bytes })
    }
}

/// What a writer has made before it is ready, in bytes.
fn made_bytes(line: &str) -> Option<u64> {
    line.strip_prefix("ready ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_writer_has_made_is_understood() {
        assert_eq!(made_bytes("ready 4096"), Some(4_096));
        assert_eq!(made_bytes("ready"), None);
        assert_eq!(made_bytes("done 3"), None);
    }
}
