//! Processes that may open few files, or none any more.

use super::*;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::io::AsyncWriteExt;

/// A coordinator that is started with a limit of files, by these options and this number of `ulimit`.
fn coordinator(limit: &str) -> Running {
    let script = format!("ulimit {limit}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, PARTAGE, "--json", "coordinator", "--listen", "127.0.0.1:0"]);
    running(&mut command)
}

impl Running {
    /// As many files as it has open now.
    fn files(&self) -> u64 {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count() as u64
    }

    /// Lets the process open that many files until the next call. Returns the former limit.
    fn limit_files(&self, current: Option<u64>) -> Option<u64> {
        let process = Pid::from_raw(self.process.id().try_into().unwrap());
        let maximum = Some(4_096);
        prlimit(process, Resource::Nofile, Rlimit { current, maximum }).unwrap().current
    }

    /// Lines of its log about a reason of refusal.
    pub fn lines(&self, reason: &str) -> usize {
        let log = std::fs::read_to_string(self.log.path()).unwrap();
        log.lines().filter(|line| line.contains(&format!("reason=\"{reason}\""))).count()
    }
}

/// Connections from another address of this machine, each with half a request.
fn half_requests(address: &str, count: usize) -> Vec<std::net::TcpStream> {
    let connect = async || {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind("127.0.0.2:0".parse().unwrap())?;
        let mut stream = socket.connect(address.parse().unwrap()).await?;
        stream.write_all(b"GET /v1/st").await?;
        stream.into_std()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut streams = Vec::new();
        for _ in 0..count {
            // The door may close it at once, or leave it waiting.
            if let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_secs(1), connect()).await {
                streams.push(stream);
            }
        }
        streams
    })
}

#[test]
fn a_process_raises_its_limit_of_files_as_far_as_it_may() {
    let coordinator = coordinator("-Sn 64; ulimit -Hn 4096");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", coordinator.process.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(words, ["4096", "4096"], "{line}");
}

#[test]
fn an_operator_gets_in_while_a_stranger_takes_all_files_of_connections() {
    let coordinator = coordinator("-n 64");
    let before = coordinator.files();
    let half = half_requests(&coordinator.at("coordinator"), 200);
    let mut taken = coordinator.files() - before;
    assert!(taken > 8, "{taken} of {} are taken", half.len());
    coordinator.status();
    // A connection that is refused has a file for a moment, too.
    for _ in 0..100 {
        if before + taken < 64 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        taken = coordinator.files() - before;
    }
    assert!(before + taken < 64, "{before} files before, and {taken} more");
    assert!(coordinator.lines("address") <= 1);
}

#[test]
fn a_process_without_files_says_so_once_in_ten_seconds_and_goes_on_when_there_are_some() {
    let coordinator = coordinator("-n 4096");
    let address = coordinator.at("coordinator");
    coordinator.status();
    let began = Instant::now();
    let former = coordinator.limit_files(Some(3));
    // It is tried again all the time, and fails each time.
    let waiting = TcpStream::connect(&address).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let lines = coordinator.lines("files");
    assert!(lines >= 1 && lines as u64 <= 1 + began.elapsed().as_secs() / 10, "{lines} lines");
    coordinator.limit_files(former);
    coordinator.status();
    drop(waiting);
    let metrics = say(&address, "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").1;
    let counted = metrics.lines().find_map(|line| {
        line.strip_prefix("partage_coordinator_door_refused_total{reason=\"files\"} ")?.parse::<u64>().ok()
    });
    assert!(counted.is_some_and(|counted| counted > 1), "{counted:?}: {metrics}");
}
