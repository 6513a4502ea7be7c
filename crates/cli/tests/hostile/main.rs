//! Strangers at the doors of the real program: pages of other sites (Z4), and those who would exhaust it (Z3).

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test fails where it cannot go on"
)]

mod files;
mod listen;
mod names;
mod state;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PARTAGE: &str = env!("CARGO_BIN_EXE_partage");

/// A process, until it is dropped.
struct Running {
    process: Child,
    told: serde_json::Value,
    log: tempfile::NamedTempFile,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn running(command: &mut Command) -> Running {
    let log = tempfile::NamedTempFile::new().unwrap();
    let command = command.env("RUST_LOG", "warn").stdout(Stdio::piped()).stderr(log.reopen().unwrap());
    let mut process = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let said = || std::fs::read_to_string(log.path()).unwrap_or_default();
    let told = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?} {}", said()));
    Running { process, told, log }
}

fn up() -> Running {
    running(Command::new(PARTAGE).args(["--json", "up", "--port", "0", "--nodes", "1", "--empty-table"]))
}

impl Running {
    fn at(&self, who: &str) -> String {
        let address = match who {
            "node" => &self.told["nodes"][0]["address"],
            "dataset" => &self.told["dataset_nodes"][0]["address"],
            who => &self.told[who],
        };
        address.as_str().unwrap().to_owned()
    }

    /// Memory that it has written to, in MiB: not the pages of its program and its files, which the system keeps as it likes.
    fn memory_mib(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_024
    }

    /// The same, once it has not grown or shrunk by a twentieth for five seconds, while somebody asks now and then: a start, and
    /// what is freed, take their time where others are at work.
    fn settled_memory_mib(&self, asks: impl Fn()) -> u64 {
        let (until, mut since, mut memory) = (Instant::now() + SETTLES, Instant::now(), self.memory_mib());
        while since.elapsed() < Duration::from_secs(5) {
            assert!(Instant::now() < until, "its memory does not come to rest: {memory} MiB");
            std::thread::sleep(Duration::from_millis(200));
            asks();
            let now = self.memory_mib();
            if now.abs_diff(memory) * 20 > memory {
                (since, memory) = (Instant::now(), now);
            }
        }
        self.memory_mib()
    }

    /// How long `partage status` takes; it must answer, though not all may be well with one node.
    fn status(&self) -> Duration {
        let began = Instant::now();
        let asked = Command::new(PARTAGE).args(["status", "--coordinator", &self.at("coordinator")]).output();
        let asked = asked.unwrap();
        let said = String::from_utf8_lossy(&asked.stderr);
        assert!(asked.status.success() || said.contains("something is wrong"), "{said}");
        began.elapsed()
    }
}

const DOORS: [&str; 5] = ["coordinator", "router", "control", "node", "dataset"];

/// The status of the answer, and all of it.
fn say(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // Whoever refuses may close before all was read.
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    (status.unwrap_or_else(|| panic!("{request:?}: {text:?}")), text)
}

/// The status of the answer to a request with these headers.
fn ask(address: &str, line: &str, headers: &str) -> u16 {
    say(address, &format!("{line} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n")).0
}

#[test]
fn z4_a_page_of_another_site_changes_nothing_and_reads_nothing() {
    let up = up();
    for door in DOORS {
        let at = up.at(door);
        let asked = |headers: &str| ask(&at, "GET /packages/libc6", headers);
        assert_eq!(asked(&format!("host: evil.example:{}\r\n", 7400)), 421, "{door}: a rebound name");
        assert!(![403, 421].contains(&asked(&format!("host: {at}\r\n"))), "{door}");
        for foreign in
            ["origin: https://evil.example", "sec-fetch-site: cross-site", "sec-fetch-site: same-site"]
        {
            let headers = format!("host: {at}\r\n{foreign}\r\n");
            assert_eq!(asked(&headers), 403, "{door}: {foreign}");
            assert_eq!(ask(&at, "POST /kill/d1", &format!("{headers}partage-request: 1\r\n")), 403, "{door}");
        }
    }
    let host = "host: localhost\r\ncontent-length: 0\r\n";
    let (control, coordinator, dataset) = (up.at("control"), up.at("coordinator"), up.at("dataset"));
    for form in ["", "content-type: text/plain\r\n", "content-type: application/x-www-form-urlencoded\r\n"] {
        let headers = format!("{host}{form}");
        assert_eq!(ask(&control, "POST /kill/n1", &headers), 403, "{form:?}");
        assert_eq!(ask(&coordinator, "POST /v1/commands", &headers), 403, "{form:?}");
        assert_eq!(ask(&dataset, "POST /-/refresh", &headers), 403, "{form:?}");
    }
    assert_eq!(ask(&control, "GET /kill/n1", host), 405, "nothing is changed by a GET");
    assert_eq!(ask(&dataset, "GET /-/refresh", host), 405);
    let (status, answer) =
        say(&coordinator, &format!("GET /v1/commands HTTP/1.1\r\nconnection: close\r\n{host}\r\n"));
    assert_eq!(status, 405, "{answer}");
    assert!(answer.to_ascii_lowercase().contains("\r\nallow: post\r\n"), "{answer}");
    let metrics = say(&coordinator, &format!("GET /metrics HTTP/1.1\r\nconnection: close\r\n{host}\r\n")).1;
    for counted in ["{reason=\"host\"} 1", "{reason=\"origin\"} 6", "{reason=\"unmarked\"} 3"] {
        assert!(metrics.contains(counted), "{counted}: {metrics}");
    }
    assert_eq!(ask(&control, "POST /kill/n1", &format!("{host}partage-request: 1\r\n")), 200);
}

/// A client that tries a thousand times does not fill the log, and shows in the metrics.
#[test]
fn z1_z4_an_attack_is_counted_each_time_and_logged_once() {
    let up = up();
    let (coordinator, begun) = (up.at("coordinator"), Instant::now());
    let post = |path: &str, headers: &str, body: &str| {
        let length = body.len();
        let head =
            format!("POST {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n");
        say(&coordinator, &(head + body))
    };
    let node = up.told["nodes"][0]["id"].as_str().unwrap();
    // A node that was not heard for a while, as the machine had too much to do, is of a later incarnation.
    let mut incarnation = 1;
    let mut forged = || loop {
        let leave =
            format!(r#"{{"node":"{node}","incarnation":{incarnation},"token":"{}"}}"#, "0".repeat(64));
        let json = "host: localhost\r\ncontent-type: application/json\r\n";
        let (status, answer) = post("/v1/worker/leave", json, &leave);
        assert_eq!(status, 410, "{answer}");
        if answer.contains("wrong_token") {
            break;
        }
        incarnation += 1;
        assert!(incarnation < 100, "{answer}");
    };
    for _ in 0..100 {
        assert_eq!(post("/v1/commands", "host: evil.example\r\n", "").0, 421);
        assert_eq!(post("/v1/commands", "host: localhost\r\norigin: https://evil.example\r\n", "").0, 403);
        assert_eq!(post("/v1/commands", "host: localhost\r\ncontent-type: text/plain\r\n", "").0, 403);
        forged();
    }
    let metrics =
        say(&coordinator, "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").1;
    for counted in [
        "{reason=\"host\"} 100\n",
        "{reason=\"origin\"} 100\n",
        "{reason=\"unmarked\"} 100\n",
        "wrong_tokens 100\n",
    ] {
        assert!(metrics.contains(counted), "{counted}: {metrics}");
    }
    let log = std::fs::read_to_string(up.log.path()).unwrap();
    let most = 1 + begun.elapsed().as_secs() / 10;
    for logged in [
        "does not answer to the host",
        "a page of another site asks",
        "could have sent it",
        "has not the token",
    ] {
        let lines = log.lines().filter(|line| line.contains(logged)).count() as u64;
        assert!((1..=most).contains(&lines), "{logged}: {lines} lines in {log}");
    }
}

/// What can be understood in two ways: headers beside the host, and the path below the door's own.
const TWO_WAYS: [(&str, &str, &str); 8] = [
    ("two hosts", "", "host: localhost\r\nhost: localhost\r\n"),
    ("two hosts that differ", "", "host: localhost\r\nhost: evil.example\r\n"),
    ("no host", "", ""),
    ("a dot segment", "/../x", "host: localhost\r\n"),
    ("a dot segment that changes nothing", "/./x", "host: localhost\r\n"),
    ("a dot segment at the end", "/..", "host: localhost\r\n"),
    (
        "two types",
        "",
        "host: localhost\r\ncontent-type: application/json\r\ncontent-type: application/json\r\n",
    ),
    (
        "two types that differ",
        "",
        "host: localhost\r\ncontent-type: application/json\r\ncontent-type: text/plain\r\n",
    ),
];

/// What no service hears of, as it cannot be read.
#[test]
fn a_request_that_cannot_be_read_is_told_what_is_wrong_with_it() {
    let up = up();
    let long = "a".repeat(100_000);
    let many: String = (0..200).map(|number| format!("x-{number}: v\r\n")).collect();
    let wrong = [
        (
            400,
            "cannot be read",
            "GET /packages/x HTTP/1.1\r\nhost: localhost\r\nno header\r\n\r\n".to_owned(),
        ),
        (414, "the path is too long", format!("GET /{long} HTTP/1.1\r\nhost: localhost\r\n\r\n")),
        (431, "headers are too long", format!("GET / HTTP/1.1\r\nhost: localhost\r\n{many}\r\n")),
    ];
    for door in DOORS {
        for (status, what, request) in &wrong {
            let (told, answer) = say(&up.at(door), request);
            assert_eq!(told, *status, "{door}: {answer}");
            let body: serde_json::Value =
                serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
            assert!(body["error"]["message"].to_string().contains(what), "{door}: {answer}");
            assert!(!body["error"]["help"].as_str().unwrap().is_empty(), "{door}: {answer}");
        }
    }
}

/// Bodies in chunks that are none: no length, one byte too many, a length below nothing, a chunk without its end.
const CHUNKS: [&str; 5] = [
    "xyz\r\nabc\r\n0\r\n\r\n",
    "3\r\nabcXX0\r\n\r\n",
    "-1\r\n\r\n",
    "3\r\nabc3\r\nabc\r\n0\r\n\r\n",
    "ffffffffffffffffff\r\nabc\r\n0\r\n\r\n",
];

/// The body of an answer, which is all that a client reads.
fn said(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

/// Every door says the same of it, in the same words: none passes on what the next program may understand otherwise.
#[test]
fn what_can_be_understood_in_two_ways_is_refused_alike_by_all_doors() {
    let up = up();
    for (what, path, headers) in TWO_WAYS {
        for method in ["GET", "POST"] {
            let answers = DOORS.map(|door| {
                let request =
                    format!("{method} /packages/libc6{path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
                let (status, answer) = say(&up.at(door), &request);
                assert_eq!(status, 400, "{door}: {what}: {answer}");
                (door, said(&answer).to_owned())
            });
            for (door, words) in &answers {
                assert_eq!(words, &answers[0].1, "{door} and {}: {what}", answers[0].0);
                assert!(words.contains("\"malformed\""), "{door}: {what}: {words}");
            }
        }
    }
    // Those that read bodies; that of `up` has only buttons.
    let readers = [
        ("coordinator", "POST /v1/commands"),
        ("router", "PUT /notes/kiwi"),
        ("router", "POST /packages"),
        ("node", "PUT /notes/kiwi"),
        ("dataset", "POST /packages"),
    ];
    for chunk in CHUNKS {
        let answers = readers.map(|(door, line)| {
            let request = format!(
                "{line} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 transfer-encoding: chunked\r\n\r\n{chunk}"
            );
            let (status, answer) = say(&up.at(door), &request);
            assert_eq!(status, 400, "{door} {line}: {chunk:?}: {answer}");
            said(&answer).to_owned()
        });
        for (words, (door, line)) in answers.iter().zip(readers) {
            assert_eq!(words, &answers[0], "{door} {line}: {chunk:?}");
        }
    }
}

/// Clients that send bodies of 50 MiB of which the last byte never comes, as far as the server takes them, and try again when it
/// does not, until `stop`: all at once at first, then each after some ten seconds, as long as an unfinished body lasts. They
/// would be on machines of their own. Here their threads run only when no other thread wants the cores, or the test would measure
/// how long readers wait for a core.
fn unfinished(
    address: &str,
    line: &str,
    count: usize,
    stop: &Arc<AtomicBool>,
) -> Vec<std::thread::JoinHandle<()>> {
    let head = format!(
        "{line} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        50 << 20
    );
    let one = |address: &str, head: &str, piece: &[u8]| {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_write_timeout(Some(Duration::from_secs(20))).ok()?;
        stream.write_all(head.as_bytes()).ok()?;
        (0..49).try_for_each(|_| stream.write_all(piece)).ok()?;
        Some(stream)
    };
    let start = |number| {
        let (address, head, stop) = (address.to_owned(), head.clone(), stop.clone());
        std::thread::spawn(move || {
            rustix::process::setpriority_process(None, 19).unwrap();
            let piece = vec![b' '; 1 << 20];
            let mut held = None;
            while !stop.load(Ordering::Relaxed) {
                held = held.or_else(|| one(&address, &head, &piece));
                let again = Instant::now() + Duration::from_millis(5_000 + 10 * (number as u64 % 1_000));
                while Instant::now() < again && !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(500));
                }
            }
        })
    };
    (0..count).map(start).collect()
}

/// The 99th of a hundred.
fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// The least that any server must do: takes a connection, reads something, answers. In this process, so it waits for the
/// same cores.
fn bare_server() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        }
    });
    address
}

/// How long strangers try, at least.
const ATTACK: Duration = Duration::from_secs(20);

/// So much memory may be left of an attack, where a fifth of what was there before is less: of the bodies each has 50 MiB.
const LEFT_MIB: u64 = 16;

/// For so long memory may take to come to rest, and to go back.
const SETTLES: Duration = Duration::from_secs(180);

/// See Z3. Of so many unfinished bodies and silent connections the process takes at most so much memory, and goes on. How long
/// reads take is told, not judged. Its memory goes back within 20 % of what it was, or [`LEFT_MIB`].
fn is_not_exhausted(bodies: usize, silent: usize) {
    let up = up();
    let read = |at: &str| {
        let began = Instant::now();
        let status = ask(at, "GET /packages/libc6", "host: localhost\r\n");
        assert_eq!(status, 200, "healthy requests go on");
        began.elapsed()
    };
    let (ours, bare) = (up.at("dataset"), bare_server().to_string());
    up.status();
    let [calm, calm_bare] = [&ours, &bare].map(|at| p99((0..500).map(|_| read(at)).collect()));
    let (coordinator, dataset, router) = (up.at("coordinator"), up.at("dataset"), up.at("router"));
    let doors = [&coordinator, &dataset, &router];
    let before = up.settled_memory_mib(|| {
        read(&ours);
    });
    let (began, stop) = (Instant::now(), Arc::default());
    let quiet: Vec<_> = (0..silent).map(|number| TcpStream::connect(doors[number % 3]).ok()).collect();
    let mut senders = unfinished(&coordinator, "POST /v1/commands", bodies, &stop);
    for at in [&dataset, &router] {
        senders.extend(unfinished(at, "POST /packages", bodies, &stop));
    }
    let (mut most, mut slowest, mut times, mut times_bare) = (0, Duration::ZERO, Vec::new(), Vec::new());
    loop {
        most = most.max(up.memory_mib());
        slowest = slowest.max(up.status());
        for _ in 0..100 {
            times.push(read(&ours));
            times_bare.push(read(&bare));
        }
        if began.elapsed() > ATTACK && times.len() >= 1_000 {
            break;
        }
    }
    most = most.max(up.memory_mib());
    assert!(most <= 512, "{most} MiB of {before} before");
    let metrics =
        say(&coordinator, "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").1;
    assert!(!metrics.contains("{reason=\"bytes_in_flight\"} 0\n"), "some were refused for it: {metrics}");
    // Three doors, each of which says it once in ten seconds.
    let (lines, tens) = (up.lines("bytes_in_flight") as u64, 1 + began.elapsed().as_secs() / 10);
    assert!(lines >= 1 && lines <= 3 * tens, "{lines} lines in {tens} times ten seconds");
    stop.store(true, Ordering::Relaxed);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    drop(quiet);
    // The streams of workers always hold some bytes; a body of this test would be more than a megabyte.
    let held = || {
        let question = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let metrics = say(&coordinator, question).1;
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("partage_coordinator_door_bytes_in_flight "));
        line.unwrap().parse::<u64>().unwrap() > 64 << 10
    };
    let until = Instant::now() + Duration::from_secs(60);
    while held() {
        assert!(Instant::now() < until, "bytes of bodies are still held");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Connections and what the allocator keeps for a moment.
    let (until, most_after) = (Instant::now() + SETTLES, before + (before / 5).max(LEFT_MIB));
    let mut after = up.memory_mib();
    while after > most_after && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(200));
        read(&ours);
        after = up.memory_mib();
    }
    let (count, strained, strained_bare) = (times.len(), p99(times), p99(times_bare));
    println!(
        "memory: {before} MiB before, at most {most} MiB, {after} MiB after; `partage status` at most {slowest:?}; the 99th of a \
         hundred reads: {calm:?} before, {strained:?} of {count} meanwhile; of a bare server beside it: {calm_bare:?} before, \
         {strained_bare:?} meanwhile"
    );
    assert!(after <= most_after, "{after} MiB are left, of {before} MiB before");
}

#[test]
fn z3_unfinished_bodies_and_silent_connections_exhaust_nothing() {
    is_not_exhausted(40, 400);
}

/// The whole figure, with `partage status` within a second, which a busy machine does not show.
#[test]
#[ignore = "takes minutes, and half a gigabyte: ./test long"]
fn z3_a_thousand_unfinished_bodies_and_ten_thousand_silent_connections_exhaust_nothing() {
    is_not_exhausted(1_000, 10_000);
}

#[cfg(unix)]
#[test]
fn state_is_for_its_user_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut process = Command::new(PARTAGE)
        .args(["--json", "coordinator", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&state)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let is_private = |folder: &std::path::Path| {
        assert_eq!(mode(folder), 0o700, "{}", folder.display());
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty());
        for path in files {
            let most = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode(&path), most, "{}", path.display());
        }
    };
    is_private(&state);
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    let backup = dir.path().join("backup");
    let run = |arguments: &[&std::ffi::OsStr]| {
        let ran = Command::new(PARTAGE).args(arguments).output().unwrap();
        assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    };
    let coordinator = told["coordinator"].as_str().unwrap_or_else(|| panic!("{told}"));
    run(&[
        "backup".as_ref(),
        "--coordinator".as_ref(),
        coordinator.as_ref(),
        "--to".as_ref(),
        backup.as_ref(),
    ]);
    assert_eq!(mode(&backup), 0o600);
    process.kill().unwrap();
    process.wait().unwrap();
    // So are those that other commands write.
    let (restored, saved) = (dir.path().join("restored"), dir.path().join("saved"));
    run(&[
        "restore".as_ref(),
        backup.as_ref(),
        "--no-wait".as_ref(),
        "--data-dir".as_ref(),
        restored.as_ref(),
    ]);
    is_private(&restored);
    run(&["check".as_ref(), state.as_ref(), "--save-to".as_ref(), saved.as_ref()]);
    is_private(&saved);
}
