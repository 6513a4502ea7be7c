//! Servers that are measured: processes of their own, on loopback, ended with their handle.

use crate::{core_seconds_ever_of, core_seconds_of, now};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Error, Result};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a server may take until it listens, or has loaded.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A server that is ended when it is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// The address that the server listens on.
    pub at: SocketAddr,
    log: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Running {
    /// Starts it and does not wait. What it writes as errors goes to a file in the system's folder for temporary files.
    pub fn spawn(command: &mut Command, at: SocketAddr) -> Result<Running> {
        let log = std::env::temp_dir().join(format!("bench-{at}.log"));
        let errors = std::fs::File::create(&log)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn();
        let child = child.map_err(|error| Error::other(format!("{:?}: {error}", command.get_program())))?;
        Ok(Running { child, at, log })
    }

    /// Starts it and waits until it listens.
    pub fn start(command: &mut Command, at: SocketAddr) -> Result<Running> {
        let mut running = Running::spawn(command, at)?;
        running.listens()?;
        Ok(running)
    }

    /// Waits until it listens.
    pub fn listens(&mut self) -> Result<()> {
        let end = now() + PATIENCE;
        while TcpStream::connect(self.at).is_err() {
            self.lives()?;
            if now() > end {
                let log = self.log.display();
                return Err(Error::other(format!("a server does not listen at {}: see {log}", self.at)));
            }
            rest(20);
        }
        Ok(())
    }

    /// An error if the process has ended.
    pub fn lives(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let log = self.log.display();
        Err(Error::other(format!("the server at {} has ended, {status}: see {log}", self.at)))
    }

    /// The id of the server's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Seconds on a core that its threads have used.
    pub fn core_seconds(&self) -> f64 {
        core_seconds_of(self.pid())
    }

    /// The same with threads that have ended, in hundredths.
    pub fn core_seconds_ever(&self) -> f64 {
        core_seconds_ever_of(self.pid())
    }

    /// Seconds on a core that the threads of it and of all processes that it has begun, and they, have used.
    pub fn core_seconds_of_family(&self) -> f64 {
        family(self.pid()).into_iter().map(core_seconds_of).sum()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.ok_or_else(|| Error::other("no process"))?, signal)?)
    }

    /// Kills the process with SIGKILL, and waits until it has ended.
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process and all that descend from it.
fn family(pid: u32) -> Vec<u32> {
    let parent = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, in brackets, come the state and the parent.
        stat.rsplit(')').next()?.split_ascii_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut family = vec![pid];
    let mut next = 0;
    while next < family.len() {
        let of = family[next];
        family.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        next += 1;
    }
    family
}

/// Sleeps on this thread for so many milliseconds.
#[expect(clippy::disallowed_methods, reason = "a bench waits for other programs")]
pub fn rest(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// An address on loopback on which no program listens. Its port is below those that the system gives to connections meanwhile.
pub fn free() -> Result<SocketAddr> {
    for _ in 0..TRIES {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", 10_000 + port % 20_000)) {
            return listener.local_addr();
        }
    }
    Err(Error::other("no port between 10000 and 30000 is free"))
}

/// Ports that are looked at before there is none.
const TRIES: usize = 200;

/// This program, to be started as a server.
pub fn myself() -> Result<Command> {
    std::fs::read_link("/proc/self/exe").map(Command::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_of_a_process_has_its_children() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(family(std::process::id()).contains(&child.id()));
        assert_eq!(family(child.id()), [child.id()]);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
