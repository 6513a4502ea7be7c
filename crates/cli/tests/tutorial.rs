//! The tutorial of the book, typed into a shell as it stands there: what is printed is what it says.
//!
//! A person looks again when something is not done yet. So what only looks is repeated until it shows what the book does;
//! what changes something is typed once. Only ports, folders and times differ here.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// After each answer, on a line of its own.
const END: &str = "--end-of-answer--";

/// A shell that goes on, with all that it has started.
struct Shell {
    process: Child,
    typed: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Shell {
    fn start(dir: &Path, coordinator: &str) -> Shell {
        let bin = dir.join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_partage"), bin.join("partage")).unwrap();
        let mut command = Command::new("bash");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        command.current_dir(dir).env("PATH", path).env("USER", "anonymous").process_group(0);
        command.env("PARTAGE_COORDINATOR", coordinator).env("PARTAGE_COORDINATORS", coordinator);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (typed, said) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Shell { process, typed, said }
    }

    /// Types that, and reads what is printed; what the processes log is left out.
    fn types(&mut self, script: &str, to: &str) -> String {
        write!(self.typed, "{{ {script}\n}} {to}\necho; echo {END}\n").unwrap();
        let mut said = String::new();
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "the shell has ended: {script}: {said}");
            if line.trim_end() == END {
                return said;
            }
            said.push_str(&line);
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = format!("-{}", self.process.id());
        let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.process.wait();
    }
}

/// The lines without widths and figures that are of the moment.
fn plain(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| {
        // What the shell itself says of a process that was killed; it does not begin a line for that.
        let line = line.split("bash: line ").next().unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        for at in 1..words.len() {
            let is_time =
                words[at - 1] == "for" && words.get(at + 1).is_some_and(|unit| unit.starts_with('s'));
            let is_count =
                words[at - 1] == "after" && words.get(at + 1).is_some_and(|unit| unit.starts_with("tries"));
            if is_time || is_count {
                words[at] = "N".to_owned();
            }
        }
        words.join(" ")
    });
    lines.filter(|line| !line.is_empty()).collect()
}

/// Whether all lines of the book are among those that were printed, in that order.
fn shows(said: &str, book: &str) -> bool {
    let said = plain(said);
    let mut rest = said.iter();
    plain(book).iter().all(|line| rest.any(|other| other == line))
}

/// What changes nothing may be looked at again.
fn only_looks(command: &str) -> bool {
    let looks = [
        "partage node list",
        "partage shard list",
        "partage status",
        "partage plan list",
        "partage explain",
        "curl -s",
    ];
    !command.contains("-X PUT")
        && (looks.iter().any(|begin| command.starts_with(begin)) || command.starts_with("for fruit in"))
}

fn free() -> String {
    format!("127.0.0.1:{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port())
}

#[test]
fn what_the_tutorial_prints_is_what_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let [coordinator, router, a, b] = [free(), free(), free(), free()];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let port = |address: &str| address.rsplit(':').next().unwrap().to_owned();
    let here = include_str!("../../../docs/src/tutorial.md")
        .replace("partage coordinator ", &format!("partage coordinator --listen {coordinator} "))
        .replace("partage router &", &format!("partage router --listen {router} &"))
        .replace("--port 8001", &format!("--port {}", port(&a)))
        .replace("--port 8002", &format!("--port {}", port(&b)))
        .replace("127.0.0.1:7400", &coordinator)
        .replace("127.0.0.1:7440", &router)
        .replace("127.0.0.1:8001", &a)
        .replace("127.0.0.1:8002", &b)
        .replace("python3 examples/", &format!("python3 {}/examples/", root.display()));
    let mut shell = Shell::start(dir.path(), &coordinator);
    let mut count = 0;
    for block in here.split("\n```").skip(1).step_by(2) {
        let (kind, text) = block.split_once('\n').unwrap();
        if kind == "sh" {
            if !text.contains("cargo build") {
                shell.types(text, ">/dev/null 2>&1");
            }
            // Nobody types so fast that a router is not there yet.
            let end = Instant::now() + PATIENCE;
            while text.contains("partage router") && TcpStream::connect(&router).is_err() {
                assert!(Instant::now() < end, "the router does not listen");
                std::thread::sleep(Duration::from_millis(50));
            }
            continue;
        }
        assert_eq!(kind, "console", "{text}");
        for step in text.trim_start_matches("$ ").split("\n$ ") {
            let (command, book) = step.split_once('\n').unwrap_or((step, ""));
            let end = Instant::now() + PATIENCE;
            let mut said = shell.types(command, "2>&1");
            while !shows(&said, book) {
                let more = only_looks(command) && Instant::now() < end;
                assert!(more, "$ {command}\n{said}\nThe book has:\n{book}");
                std::thread::sleep(Duration::from_millis(200));
                said = shell.types(command, "2>&1");
            }
            count += 1;
        }
    }
    assert!(count >= 20, "only {count} commands were found");
}
