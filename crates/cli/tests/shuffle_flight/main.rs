//! Shuffles from Python, over Arrow Flight: pyarrow alone, against a coordinator and three nodes as processes of their own. The
//! checker is in Python too, and shares no code with the program.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

#[path = "../shuffle_pool/mod.rs"]
mod pool;

use pool::Pool;
use pool::process::{Process, Said, tool};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Processes that write, and processes that read.
const WRITERS: usize = 4;
const READERS: usize = 2;

/// A program in Python, with the packages that `./test setup` has installed.
fn python(file: &Path) -> Command {
    let python = tool("arrow/bin/python");
    assert!(python.exists(), "{} is not there: `./test setup` installs it", python.display());
    let mut command = Command::new(python);
    // No folder of compiled files in the checkout.
    command.arg(file).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn nodes(pool: &Pool) -> Vec<String> {
    pool.addresses().iter().map(|address| format!("grpc://{address}")).collect()
}

/// A verb of `flight.py`.
fn verb(pool: &Pool, verb: &str, arguments: &[&str]) -> Command {
    let mut command = python(&checkout("crates/cli/tests/shuffle_flight/flight.py"));
    command.arg(verb).arg(pool.path("")).arg(nodes(pool).join(",")).args(arguments);
    command
}

#[track_caller]
fn succeeds(command: Command) -> String {
    let said = Said::of(command);
    assert_eq!(said.code, Some(0), "{said:?}");
    said.out.trim().to_owned()
}

/// The command goes on, and says line by line how far it is.
fn begin(mut command: Command) -> (Process, impl Iterator<Item = String>) {
    let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    (process, lines.map(Result::unwrap))
}

#[track_caller]
fn ends_well(mut process: Process) {
    let status = process.0.wait().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn the_example_shuffles_with_pyarrow_alone() {
    let pool = Pool::start(3);
    let mut example = python(&checkout("examples/shuffle-pyarrow/shuffle.py"));
    example.args(nodes(&pool));
    let said = succeeds(example);
    for line in [
        "stored 80000 rows of 8 input partitions",
        "sealed 80000 rows",
        "partition 0: 26666 rows, from ",
        "partition 1: 26667 rows, from ",
        "partition 2: 26667 rows, from ",
    ] {
        assert!(said.contains(line), "{line:?} is not in {said}");
    }
    pool.eventually("the shuffle is deleted", || {
        let listed = pool.run(&["shuffle", "list", "--json"]).json();
        let left = listed["shuffles"].as_array().map(Vec::len);
        if left == Some(0) { Ok(()) } else { Err(listed.to_string()) }
    });
}

#[test]
fn a_writer_and_a_node_that_are_killed_half_way_lose_and_double_nothing() {
    let mut pool = Pool::start(3);
    let shuffle = succeeds(verb(&pool, "start", &[]));
    let of = WRITERS.to_string();
    let put = |pool: &Pool, writer: usize| verb(pool, "put", &[&shuffle, &writer.to_string(), &of]);
    let mut writers: Vec<_> = (0..WRITERS).map(|writer| begin(put(&pool, writer))).collect();
    // One of its four partitions is whole, and it writes the next one.
    let (mut first, mut lines) = writers.remove(0);
    assert!(lines.next().is_some(), "the first writer has ended");
    assert!(first.0.try_wait().unwrap().is_none(), "the first writer is over: give it more rows");
    first.kill();
    pool.kill(2);
    // Who has no word of what it stored writes all of it again.
    let (again, _lines) = begin(put(&pool, 0));
    ends_well(again);
    writers.into_iter().for_each(|(writer, _lines)| ends_well(writer));
    succeeds(verb(&pool, "seal", &[&shuffle]));
    let of = READERS.to_string();
    let read = |reader: usize| begin(verb(&pool, "read", &[&shuffle, &reader.to_string(), &of]));
    let readers: Vec<_> = (0..READERS).map(read).collect();
    readers.into_iter().for_each(|(reader, _lines)| ends_well(reader));
    succeeds(verb(&pool, "check", &[]));
    succeeds(verb(&pool, "delete", &[&shuffle]));
}

#[test]
fn a_writer_that_is_killed_or_fails_half_way_has_written_nothing() {
    let pool = Pool::start(3);
    let shuffle = succeeds(verb(&pool, "start", &[]));
    let (mut half, mut lines) = begin(verb(&pool, "half", &[&shuffle, "0"]));
    assert_eq!(lines.next().as_deref(), Some("half"));
    half.kill();
    succeeds(verb(&pool, "lacks", &[&shuffle, "0"]));
    // Those end their streams in order.
    let failed = Said::of(verb(&pool, "fail", &[&shuffle, "0"]));
    assert!(failed.code == Some(1) && failed.err.contains("half-way"), "{failed:?}");
    succeeds(verb(&pool, "lacks", &[&shuffle, "0"]));
    succeeds(verb(&pool, "put", &[&shuffle, "0", "1"]));
    succeeds(verb(&pool, "seal", &[&shuffle]));
    succeeds(verb(&pool, "delete", &[&shuffle]));
}

#[test]
fn pandas_polars_and_duckdb_read_streams_of_arrow() {
    let pool = Pool::start(3);
    let shuffle = succeeds(verb(&pool, "start", &[]));
    succeeds(verb(&pool, "put", &[&shuffle, "0", "1"]));
    succeeds(verb(&pool, "seal", &[&shuffle]));
    succeeds(verb(&pool, "read", &[&shuffle, "0", "1"]));
    succeeds(verb(&pool, "check", &[]));
    succeeds(verb(&pool, "engines", &[&shuffle]));
    succeeds(verb(&pool, "delete", &[&shuffle]));
}

#[test]
fn rows_and_raw_records_of_equal_keys_become_one() {
    let pool = Pool::start(3);
    succeeds(verb(&pool, "combine", &[]));
}
