//! The tutorial.

use super::page::{Block, PATIENCE, Step, blocks, only_looks, shows, steps};
use super::shell::Shell;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

fn free() -> String {
    format!("127.0.0.1:{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port())
}

#[test]
fn what_the_tutorial_prints_is_what_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let [coordinator, router, a, b] = [free(), free(), free(), free()];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let port = |address: &str| address.rsplit(':').next().unwrap().to_owned();
    let here = include_str!("../../../../docs/src/tutorial.md")
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
    for Block { kind, text, .. } in blocks(&here) {
        if kind == "sh" {
            if !text.contains("cargo build") {
                shell.types(&text, ">/dev/null 2>&1");
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
        for Step { command, shows: book } in steps(&text) {
            let end = Instant::now() + PATIENCE;
            let (mut said, _) = shell.types(&command, "2>&1");
            while !shows(&said, &book) {
                let more = only_looks(&command) && Instant::now() < end;
                assert!(more, "$ {command}\n{said}\nThe book has:\n{book}");
                std::thread::sleep(Duration::from_millis(200));
                (said, _) = shell.types(&command, "2>&1");
            }
            count += 1;
        }
    }
    assert!(count >= 20, "only {count} commands were found");
}
