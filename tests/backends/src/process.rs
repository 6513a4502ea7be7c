//! One process: started with a log of its own, signalled by its id, waited for.

use crate::{DEADLINE, LOOK};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use tokio::time::{Instant, sleep};

/// The same command, whose process goes on after it was told that a file cannot grow any more: by itself the kernel would
/// end it with a signal.
#[must_use]
pub fn outlives_its_limits(command: &Command) -> Command {
    let mut outlives = Command::new("/bin/sh");
    outlives
        .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outlives.env(name, value),
            None => outlives.env_remove(name),
        };
    }
    outlives
}

/// A process that dies with its handle.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; what it writes goes to `log`, after what is there.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Process {
        let file = File::options().create(true).append(true).open(log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Process { name: name.to_owned(), child, log: log.to_owned() }
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).unwrap();
    }

    /// Its memory now, in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        resident.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// How many files and sockets it has open now.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    fn id(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap()
    }

    /// From now on it cannot make a file larger than so many bytes, as if its disk were full; without a number it can
    /// again. It must have been started by a command that [`outlives_its_limits`] made.
    pub fn limit_files(&self, bytes: Option<u64>) {
        prlimit(Some(self.id()), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
    }

    /// Kills the process as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Asks it to look at its configuration, or source, again.
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// It sleeps, wherever it is. Returns when all of its threads do: a signal is taken when a thread is next looked at,
    /// and until then one may still answer.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let latest = Instant::now() + DEADLINE;
        while !self.stands_still() {
            assert!(Instant::now() < latest, "it does not stop");
            std::thread::yield_now();
        }
    }

    /// Whether each of its threads is stopped, as the kernel says; what has ended stands still, too.
    fn stands_still(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.child.id())) else { return true };
        let states =
            threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
        // The name, in brackets, may hold anything; the state follows it.
        states.into_iter().all(|stat| {
            let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
            matches!(state, Some('T' | 't' | 'Z' | 'X'))
        })
    }

    /// It goes on as if nothing had happened.
    pub fn wake(&self) {
        self.signal(Signal::CONT);
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end.
    pub async fn end(&mut self) -> ExitStatus {
        let latest = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(
                Instant::now() < latest,
                "{} has not ended within {DEADLINE:?}\n{}",
                self.name,
                self.log()
            );
            sleep(LOOK).await;
        }
    }

    /// Everything it has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(40)..].join("\n");
            eprintln!("── the last lines of {}\n{tail}", self.name);
        }
    }
}
