//! Bytes that no client sends: a definite error or the end of the connection, and others are served on.

use crate::support::{Server, connect, encoded, shown};
use partage_core::keyspace::sharding::PartitionKey;
use partage_core::limits::{KEY_BYTES, VALUE_BYTES};
use partage_resp::limits;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::io::{Read, Write};

/// All that comes until the listener closes, or has answered everything after our side is closed.
fn answer(server: &Server, bytes: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut stream = connect(server.address);
    let (mut rest, mut cuts) = (bytes, cuts.iter().cycle());
    while !rest.is_empty() {
        let cut = rest.len().min(*cuts.next().unwrap_or(&usize::MAX));
        // It may have closed already.
        if stream.write_all(&rest[..cut]).is_err() {
            break;
        }
        rest = &rest[cut..];
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    heard
}

fn nearly_requests() -> impl Strategy<Value = Vec<u8>> {
    let word = prop::sample::select(vec![
        "SET", "GET", "DEL", "MULTI", "EXEC", "SCAN", "HELLO", "a", "b", "0", "3", "", "EX",
    ]);
    let piece = prop_oneof![
        8 => prop::collection::vec(word, 1..5).prop_map(|words| encoded(&words)),
        1 => prop::collection::vec(any::<u8>(), 0..10),
        1 => "[*$:+-][0-9-]{0,4}\r?\n?".prop_map(String::into_bytes),
        1 => "[A-Za-z \"']{0,10}\r\n".prop_map(String::into_bytes),
    ];
    prop::collection::vec(piece, 1..10).prop_map(|pieces| pieces.concat())
}

#[test]
fn the_answers_do_not_depend_on_how_the_bytes_were_cut() {
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    let input = (nearly_requests(), prop::collection::vec(1_usize..30, 1..10));
    let result = TestRunner::new(config).run(&input, |(bytes, cuts)| {
        let [whole, cut] = [Server::in_memory(PartitionKey::Whole), Server::in_memory(PartitionKey::Whole)];
        let [whole, cut] = [answer(&whole, &bytes, &[]), answer(&cut, &bytes, &cuts)];
        let [whole, cut] = [whole, cut].map(|heard| heard.escape_ascii().to_string());
        prop_assert_eq!(whole, cut, "{}", bytes.escape_ascii());
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn lying_lengths_end_the_connection_with_a_reason() {
    let server = Server::in_memory(PartitionKey::Whole);
    for (bytes, reason) in [
        (&b"*1\r\n$-1\r\n"[..], "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*2147483648\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*2\r\n$3\r\nGET\r\n+a\r\n", "-ERR Protocol error: expected '$', got '+'\r\n"),
        (b"*1\r\n$4\r\nPINGPING\r\n", "-ERR Protocol error: a string is longer than its length says\r\n"),
    ] {
        assert_eq!(String::from_utf8_lossy(&answer(&server, bytes, &[])), reason);
    }
    // Nothing is said to a request that does not end.
    assert_eq!(answer(&server, b"*2\r\n$3\r\nGET\r\n$1000\r\nabc", &[]), b"");
}

#[test]
fn keys_and_values_at_the_limits_and_above() {
    let server = Server::in_memory(PartitionKey::Whole);
    let mut client = server.client();
    let strange: [&[u8]; 4] = [b"", b"\0", b"\xff\xfe\r\n", b"*3\r\n$3\r\nDEL\r\n"];
    for key in strange {
        assert_eq!(shown(&client.ask(&[b"SET", key, key])), "+OK");
        assert_eq!(client.ask(&[b"GET", key]), resp_rs::resp3::Frame::BulkString(Some(key.to_vec().into())));
    }
    let (key, value) = (vec![7; KEY_BYTES], vec![7; VALUE_BYTES]);
    assert_eq!(shown(&client.ask(&[b"SET", &key[..], &value])), "+OK");
    let long_key = vec![7; KEY_BYTES + 1];
    for command in [&b"GET"[..], b"INCR", b"DEL", b"TTL"] {
        let refused = shown(&client.ask(&[command, &long_key]));
        assert_eq!(refused, "-ERR a key of 4097 bytes is too long: the limit is 4096");
    }
    let long_value = vec![7; VALUE_BYTES + 1];
    let refused = shown(&client.ask(&[b"SET", &b"a"[..], &long_value]));
    assert!(
        refused.starts_with("-ERR the value of key 'a' has 1048577 bytes and may have 1048576"),
        "{refused}"
    );
    let refused = shown(&client.ask(&[b"APPEND", &key[..], b"x"]));
    assert!(refused.starts_with("-ERR string exceeds maximum allowed size"), "{refused}");
    let longest = vec![7; 4 << 20];
    let refused = shown(&client.ask(&[b"SET", &b"a"[..], &longest]));
    assert!(refused.starts_with("-ERR the command is longer than"), "{refused}");
    let many = vec!["GET"; limits::ARGUMENTS + 1];
    let refused = shown(&client.ask(&many));
    assert!(refused.starts_with("-ERR the command has 2049 arguments and may have 2048"), "{refused}");
    // A command that was dropped breaks the transaction that it was meant for.
    assert_eq!(client.say("MULTI"), "+OK");
    client.ask(&many);
    assert!(client.say("EXEC").starts_with("-EXECABORT"));
    assert_eq!(client.say("EXISTS a"), ":0");
}

#[test]
fn huge_times_and_counts_are_refused() {
    let server = Server::in_memory(PartitionKey::Whole);
    let mut client = server.client();
    assert_eq!(client.say("SET a 1 EX 9223372036854775807"), "-ERR invalid expire time in 'set' command");
    assert_eq!(client.say("SET a 1 PXAT 9223372036854775807"), "+OK");
    assert_eq!(client.say("PEXPIRETIME a"), ":9223372036854775807");
    assert_eq!(client.say("GETRANGE a -9223372036854775808 9223372036854775807"), "1");
    assert_eq!(client.say("SCAN 0 COUNT 9223372036854775807"), "[0 [a]]");
    assert_eq!(client.say("SCAN 7"), "-ERR the cursor 7 is not known, or not any more: begin again with 0");
    assert_eq!(client.say("SCAN 99999999999999999999"), "-ERR invalid cursor");
}

#[test]
fn a_transaction_has_its_limits() {
    let server = Server::in_memory(PartitionKey::Whole);
    let mut client = server.client();
    client.say("MULTI");
    for _ in 0..limits::QUEUED_COMMANDS {
        assert_eq!(client.say("INCR a"), "+QUEUED");
    }
    assert!(client.say("INCR a").starts_with("-ERR a transaction has at most 1000 commands"));
    assert!(client.say("EXEC").starts_with("-EXECABORT"));
    client.say("MULTI");
    (0..limits::QUEUED_COMMANDS).for_each(|_| drop(client.say("INCR a")));
    assert!(client.say("EXEC").ends_with(":1000]"));
}

#[test]
fn an_answer_has_its_limit_and_memory_that_is_missing_is_an_error() {
    let server = Server::in_memory(PartitionKey::HashTag);
    let mut client = server.client();
    client.ask(&[b"SET", &b"{t}k"[..], &vec![7; VALUE_BYTES]]);
    let mget = |count: usize| [vec!["MGET"], vec!["{t}k"; count]].concat();
    assert!(matches!(client.ask(&mget(15)), resp_rs::resp3::Frame::Array(Some(_))));
    assert!(shown(&client.ask(&mget(17))).starts_with("-ERR the values have more than 16777216 bytes"));

    let settings = partage_door::Settings {
        budget: std::sync::Arc::new(partage_door::Budget::new(1 << 20, None)),
        ..partage_door::Settings::default()
    };
    let server = Server::start_in(settings, |_| crate::support::one(PartitionKey::Whole));
    let mut client = server.client();
    assert_eq!(shown(&client.ask(&[b"SET", &b"a"[..], &vec![7; 100_000]])), "+OK");
    let refused = shown(&client.ask(&[b"SET", &b"b"[..], &vec![7; VALUE_BYTES]]));
    assert!(refused.starts_with("-TRYAGAIN too many bytes of requests are under way"), "{refused}");
    assert_eq!((client.say("EXISTS b"), client.say("STRLEN a")), (":0".into(), ":100000".into()));
}
