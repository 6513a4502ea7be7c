//! The same commands to a real Redis and to a table in memory: the same answers.

use crate::support::{Client, Server, shown};
use partage_core::keyspace::sharding::PartitionKey;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A Redis of its own.
struct Redis {
    process: Child,
    folder: TempDir,
}

impl Redis {
    fn start() -> Redis {
        let folder = TempDir::new().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket", "redis.sock"]);
        let quiet = command.current_dir(folder.path()).stdout(Stdio::null());
        let process =
            quiet.spawn().expect("redis-server of the Debian package redis-server: ./test setup installs it");
        let redis = Redis { process, folder };
        for _ in 0..1_000 {
            if UnixStream::connect(redis.folder.path().join("redis.sock")).is_ok() {
                return redis;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server does not listen");
    }

    fn client(&self) -> Client<UnixStream> {
        let stream = UnixStream::connect(self.folder.path().join("redis.sock")).unwrap();
        stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
        Client::new(stream)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["{t}a", "{t}b", "{t}c"]).prop_map(str::to_owned)
}

fn value() -> impl Strategy<Value = String> {
    let some =
        ["", "x", "0", "7", "-3", "007", "9223372036854775807", "-9223372036854775808", "1.5", "hello world"];
    prop::sample::select(some.to_vec()).prop_map(str::to_owned)
}

fn number() -> impl Strategy<Value = String> {
    let some =
        ["0", "1", "-1", "2", "-3", "100", "9223372036854775807", "-9223372036854775808", "x", "", "1.0"];
    prop::sample::select(some.to_vec()).prop_map(str::to_owned)
}

/// Times that are far away, over, or impossible.
fn time() -> impl Strategy<Value = String> {
    let some =
        ["100000", "200000", "0", "-1", "x", "9223372036854775807", "-9223372036854775808", "4000000000"];
    prop::sample::select(some.to_vec()).prop_map(str::to_owned)
}

fn option() -> impl Strategy<Value = Vec<String>> {
    let flag =
        prop::sample::select(vec!["NX", "XX", "GET", "KEEPTTL", "PERSIST", "GT", "LT", "ZZ", "px", "EX"]);
    let timed = prop::sample::select(vec!["EX", "PX", "EXAT", "PXAT", "ex"]);
    prop_oneof![
        3 => flag.prop_map(|flag| vec![flag.to_owned()]),
        2 => (timed, time()).prop_map(|(unit, time)| vec![unit.to_owned(), time]),
    ]
}

fn getex_options() -> impl Strategy<Value = Vec<String>> {
    let some: Vec<&[&str]> = vec![
        &[],
        &["EX", "100000"],
        &["PERSIST"],
        &["EX", "1", "PERSIST"],
        &["NX"],
        &["EXAT", "1"],
        &["PXAT", "4000000000000"],
    ];
    prop::sample::select(some).prop_map(|one| one.iter().map(|word| (*word).to_owned()).collect())
}

type Words = Vec<String>;

fn words(parts: impl IntoIterator<Item = String>) -> Words {
    parts.into_iter().collect()
}

fn named(names: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(names.to_vec()).prop_map(str::to_owned)
}

fn on_rows() -> impl Strategy<Value = Words> {
    let options = || prop::collection::vec(option(), 0..3).prop_map(|all| all.concat());
    let expire_options = || prop::collection::vec(named(&["NX", "XX", "GT", "LT", "gt", "ZZ"]), 0..3);
    prop_oneof![
        4 => (key(), value(), options()).prop_map(|(k, v, o)| words(["SET".into(), k, v].into_iter().chain(o))),
        2 => (named(&["GET", "GETDEL", "STRLEN", "INCR", "DECR", "TYPE", "PERSIST", "get"]), key())
            .prop_map(|(c, k)| words([c, k])),
        2 => (named(&["TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME"]), key()).prop_map(|(c, k)| words([c, k])),
        2 => (named(&["INCRBY", "DECRBY"]), key(), number()).prop_map(|(c, k, n)| words([c, k, n])),
        1 => (named(&["SETNX", "APPEND", "GETSET"]), key(), value()).prop_map(|(c, k, v)| words([c, k, v])),
        1 => (named(&["SETEX", "PSETEX"]), key(), time(), value()).prop_map(|(c, k, t, v)| words([c, k, t, v])),
        // With a time that cannot be, Redis answers nothing where there is no row, and we an error.
        1 => (key(), getex_options()).prop_map(|(k, o)| words(["GETEX".into(), k].into_iter().chain(o))),
        1 => (key(), number(), number()).prop_map(|(k, f, t)| words(["GETRANGE".into(), k, f, t])),
        3 => (named(&["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"]), key(), time(), expire_options())
            .prop_map(|(c, k, t, o)| words([c, k, t].into_iter().chain(o))),
        2 => (named(&["DEL", "UNLINK", "EXISTS", "MGET", "TOUCH"]), prop::collection::vec(key(), 1..4))
            .prop_map(|(c, k)| words([c].into_iter().chain(k))),
        1 => (named(&["MSET", "MSETNX"]), prop::collection::vec((key(), value()), 1..3))
            .prop_map(|(c, pairs)| words([c].into_iter().chain(pairs.into_iter().flat_map(|(k, v)| [k, v])))),
        1 => Just(words(["MSET".into(), "{t}a".into(), "1".into(), "{t}b".into()])),
    ]
}

fn other() -> impl Strategy<Value = Words> {
    let some: Vec<&[&str]> = vec![
        &["MULTI"],
        &["MULTI"],
        &["EXEC"],
        &["EXEC"],
        &["EXEC"],
        &["DISCARD"],
        &["WATCH", "{t}a"],
        &["WATCH", "{t}a", "{t}b"],
        &["UNWATCH"],
        &["PING"],
        &["PING", "hello"],
        &["PING", "a", "b"],
        &["ECHO", "x"],
        &["ECHO"],
        &["SELECT", "0"],
        &["SELECT", "x"],
        &["SELECT", "99999"],
        &["GET"],
        &["SET", "{t}a"],
        &["MGET"],
        &["NOSUCHCOMMAND", "a", "b c"],
        &["CLIENT", "GETNAME"],
        &["CLIENT", "SETNAME", "me"],
        &["CLIENT", "SETNAME", "a b"],
        &["CLIENT", "SETNAME"],
        &["HELLO", "4"],
        &["HELLO", "x"],
        &["SCAN", "x"],
        &["SCAN", "0", "COUNT"],
        &["SCAN", "0", "COUNT", "0"],
        &["SCAN", "0", "COUNT", "x"],
        &["SCAN", "0", "COUNT", "1000", "TYPE", "list"],
        &["WAIT", "0", "-1"],
        &["WAIT", "x", "0"],
        &["AUTH", "a", "b", "c"],
        &["RESET"],
    ];
    prop::sample::select(some).prop_map(|one| one.iter().map(|word| (*word).to_owned()).collect())
}

/// Whether the answers may differ, and how little then.
fn is_alike(command: &Words, ours: &str, theirs: &str) -> bool {
    let name = command[0].to_ascii_uppercase();
    let (Some(a), Some(b)) = (number_of(ours), number_of(theirs)) else { return ours == theirs };
    // A clock goes on between the two.
    match name.as_str() {
        "TTL" | "EXPIRETIME" => a.abs_diff(b) <= 2,
        "PTTL" | "PEXPIRETIME" => a.abs_diff(b) <= 2_000,
        _ => a == b,
    }
}

fn number_of(text: &str) -> Option<i64> {
    text.strip_prefix(':')?.parse().ok()
}

/// In the answer to EXEC times stand among others.
fn has_time(queued: &[Words]) -> bool {
    queued
        .iter()
        .any(|command| command[0].to_ascii_uppercase().contains("TTL") || command[0].ends_with("TIME"))
}

/// What differs on purpose; see the page `tables-redis.md` of the book.
fn differs_on_purpose(command: &Words, ours: &str, theirs: &str) -> bool {
    let name = command[0].to_ascii_uppercase();
    match name.as_str() {
        // Redis queues what is no command on rows; here it breaks the transaction.
        "SELECT" | "CLIENT" | "SCAN" | "WAIT" | "AUTH" | "HELLO" => {
            ours.contains("not allowed inside a transaction")
                || theirs.contains("not allowed inside a transaction")
        }
        // The clock goes on between the two: a time to live that was the same may be later.
        "EXPIRE" | "PEXPIRE" => {
            let compares =
                command.iter().any(|word| ["GT", "LT"].contains(&word.to_ascii_uppercase().as_str()));
            compares && number_of(ours).is_some() && number_of(theirs).is_some() && ours != theirs
        }
        _ => false,
    }
}

#[test]
fn a_table_answers_as_redis_does() {
    let (redis, server) = (Redis::start(), Server::in_memory(PartitionKey::HashTag));
    let sequence = prop::collection::vec(prop_oneof![5 => on_rows(), 1 => other()], 1..40);
    let mut runner = TestRunner::new(Config { cases: 600, failure_persistence: None, ..Config::default() });
    let result = runner.run(&(sequence, any::<bool>()), |(commands, is_three)| {
        let (mut theirs, mut ours) = (redis.client(), server.client());
        theirs.say("FLUSHALL");
        ours.say("DEL {t}a {t}b {t}c");
        if is_three {
            theirs.say("HELLO 3");
            ours.say("HELLO 3");
        }
        let mut queued = Vec::new();
        for (at, command) in commands.iter().enumerate() {
            let (a, b) = (shown(&ours.ask(command)), shown(&theirs.ask(command)));
            if differs_on_purpose(command, &a, &b) {
                return Ok(());
            }
            // A row that is absent has no version: that it was there in between is not seen.
            let mut absent =
                || ["{t}a", "{t}b"].iter().any(|key| theirs.say(&format!("EXISTS {key}")) == ":0");
            if command[0] == "EXEC" && (b == "nil array" || b == "null") && a != b && absent() {
                return Ok(());
            }
            let is_loose = command[0].eq_ignore_ascii_case("exec") && has_time(&queued);
            prop_assert!(
                is_loose || is_alike(command, &a, &b),
                "{:?} is answered\n  {a}\nand by Redis\n  {b}\nafter {:?}",
                command,
                &commands[..at]
            );
            if b == "+QUEUED" { queued.push(command.clone()) } else { queued.clear() }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
