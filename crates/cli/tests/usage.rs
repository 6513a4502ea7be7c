//! What the command line refuses by itself: what makes no sense together, and addresses and ports that cannot be.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of a process waits by the clock")]

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

fn partage(arguments: &[&str]) -> Output {
    // No process listens there: what is refused is refused before a node is asked.
    Command::new(env!("CARGO_BIN_EXE_partage"))
        .args(arguments)
        .env("PARTAGE_COORDINATOR", "127.0.0.1:9")
        .output()
        .unwrap()
}

/// What it says about wrong usage.
fn wrong(arguments: &[&str]) -> String {
    let output = partage(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    said
}

#[test]
fn flags_of_another_sharding_are_refused_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    std::fs::write(&keys, "a\nb\n").unwrap();
    let keys = keys.to_str().unwrap();
    for (flags, says) in [
        (
            &["--sharding", "key-range", "--shards", "8"][..],
            ["--shards cannot cut key ranges", "--sample FILE"],
        ),
        (
            &["--split", "a,b"],
            ["--split means nothing with --sharding hash-range", "say --sharding key-range"],
        ),
        (&["--sharding", "named", "--split", "a,b"], ["--split means nothing", "--sharding key-range"]),
        (
            &["--sharding", "named", "--shards", "8"],
            ["--shards means nothing", "hash-range or --sharding fixed"],
        ),
        (&["--sharding", "fixed", "--sample", keys], ["--sample means nothing", "--sharding key-range"]),
        (
            &["--sharding", "key-range", "--partitions", "p"],
            ["--partitions means nothing", "--sharding named"],
        ),
        (&["--sharding", "key-range", "--hash", "crc16"], ["--hash means nothing", "--sharding hash-range"]),
        (&["--column", "x"], ["are about the file of --sample", "leave them out"]),
        (&["--sharding", "key-ranges"], ["did you mean \"key-range\"?", "hash-range, fixed, named"]),
        (&["--sharding", "md5"], ["given as --hash md5", "hash-range, fixed, named"]),
        (&["--hash", "md-5"], ["--hash: there is no hash function", "did you mean md5?"]),
        (&["--partition-key", "prefix"], ["prefix:8", "hash-tag"]),
        (
            &["--sharding", "key-range", "--sample", keys, "--shards", "3"],
            ["has 2 different keys, too few for 3 shards", "ask for at most 2"],
        ),
    ] {
        let said = wrong(&[&["keyspace", "create", "k"], flags].concat());
        assert!(says.iter().all(|part| said.contains(part)), "{flags:?}: {said}");
    }
}

#[test]
fn a_sample_that_cannot_be_read_says_how_it_could() {
    let dir = tempfile::tempdir().unwrap();
    let create = |name: &str, content: &[u8], flags: &[&str]| {
        let file = dir.path().join(name);
        std::fs::write(&file, content).unwrap();
        let sample =
            ["keyspace", "create", "k", "--sharding", "key-range", "--sample", file.to_str().unwrap()];
        let output = partage(&[&sample[..], flags].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = create("empty", b"", &[]);
    assert!(code == Some(1) && said.contains("at least one key"), "{said}");
    let (code, said) = create("keys.jsonl", b"{\"key\": \"a\"}\n", &[]);
    assert!(code == Some(2) && said.contains("--field NAME"), "{said}");
    let (code, said) = create("keys.jsonl", b"{\"key\": \"a\"}\n", &["--field", "kye"]);
    assert!(code == Some(2) && said.contains("did you mean \"key\"?"), "{said}");
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zipped.write_all(b"name,load\na,1\nb,0\n").unwrap();
    let flags = ["--column", "name", "--weight", "load", "--shards", "1"];
    let (code, said) = create("keys.csv.gz", &zipped.finish().unwrap(), &flags);
    assert!(
        code == Some(2) && said.contains("weight 0"),
        "it is unpacked, and its columns are found: {said}"
    );
}

#[test]
fn the_many_flags_of_a_keyspace_have_headings() {
    let help = partage(&["keyspace", "create", "--help"]);
    let text = String::from_utf8(help.stdout).unwrap();
    let under = |heading: &str| {
        let (_, rest) =
            text.split_once(&format!("\n{heading}:\n")).unwrap_or_else(|| panic!("{heading}: {text}"));
        rest.split("\n\n").next().unwrap_or_default()
    };
    for (heading, flags) in [
        ("Sharding", &["--sharding", "--sample", "--partition-key"][..]),
        ("Replication and placement", &["--replicas", "--policy", "--pin", "--ahead"]),
        ("Data", &["--kind", "--ownership", "--durable"]),
        ("Load balancing and limits", &["--mode", "--moves", "--replace-after-ms"]),
        ("When shards split and merge", &["--split-bytes", "--max-shards"]),
        ("Request", &["--coordinator", "--as", "--dry-run", "--wait", "--timeout"]),
        ("Options", &["--json", "--help"]),
    ] {
        let missing: Vec<_> = flags.iter().filter(|flag| !under(heading).contains(**flag)).collect();
        assert!(missing.is_empty(), "{heading} lacks {missing:?}: {text}");
    }
    assert_eq!(under("Options").lines().count(), 2, "{text}");
}

#[test]
fn mistakes_are_json_where_json_was_asked_for() {
    for (arguments, error, help) in [
        (&["--json", "statu"][..], "unrecognized subcommand 'statu'", "'status'"),
        (&["node", "drain", "--json"], "required arguments", "--zone"),
        (&["keyspace", "create", "k", "--shards", "x", "--json"], "invalid value 'x'", "--help"),
        (&["keyspace", "create", "k", "--split", "a", "--json"], "--split means nothing", "leave it out"),
    ] {
        let said = wrong(arguments);
        let form: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{arguments:?}: {said}"));
        let text = |field: &str| form["error"][field].as_str().unwrap().to_owned();
        assert_eq!((&form["error"]["kind"], &form["error"]["exit_code"]), (&"usage".into(), &2.into()));
        let all = format!("{} {}", text("message"), text("help"));
        assert!(text("message").contains(error) && all.contains(help), "{form}");
        assert!(!text("message").starts_with("error"), "{form}");
    }
    let asked = partage(&["--json", "status", "--help"]);
    assert!(asked.status.success() && asked.stderr.is_empty(), "help is no mistake");
}

#[test]
fn addresses_and_ports_that_cannot_be_say_what_can() {
    for (address, says) in [
        ("https://127.0.0.1:7400/", "https is not spoken there: give host:port alone: 127.0.0.1:7400"),
        ("localhost", "give host:port, such as 127.0.0.1:7400"),
        ("", "give host:port"),
    ] {
        let said = wrong(&["status", "--coordinator", address]);
        assert!(said.contains(says), "{address}: {said}");
    }
    let said = wrong(&["up", "--port", "65530"]);
    assert!(said.contains("--port 65530") && said.contains("give 65233 or less"), "{said}");
}

#[test]
fn the_node_or_its_zone_is_asked_for() {
    let said = wrong(&["node", "drain"]);
    assert!(said.contains("--zone"), "{said}");
    assert!(wrong(&["node", "drain", "n1", "--zone", "z"]).contains("cannot be used with"));
}

#[test]
fn words_are_listed_in_the_help() {
    let help = String::from_utf8(partage(&["keyspace", "create", "--help"]).stdout).unwrap();
    for word in [
        "rendezvous",
        "ring_index",
        "murmur3",
        "crc16",
        "hash-tag",
        "--max-replicas",
        "--split-requests-per-s",
    ] {
        assert!(help.contains(word), "{word} is not in {help}");
    }
}

#[test]
fn a_state_that_cannot_be_read_is_not_taken_for_a_port_that_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "no directory").unwrap();
    let output = partage(&["up", "--port", "0", "--data-dir", file.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(file.to_str().unwrap()) && !said.contains("--port"), "{said}");
}

#[test]
fn logs_in_a_file_have_no_colours() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut coordinator = Command::new(env!("CARGO_BIN_EXE_partage"))
        .args(["coordinator", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(coordinator.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit('/').next().unwrap();
    assert!(partage(&["keyspace", "create", "k", "--coordinator", address]).status.success());
    coordinator.kill().unwrap();
    coordinator.wait().unwrap();
    let written = std::fs::read_to_string(&log).unwrap();
    assert!(written.contains("create keyspace k"), "it has logged: {written}");
    assert!(!written.contains('\u{1b}'), "{written}");
}

#[test]
fn a_shard_is_released_by_name_or_all_are() {
    assert!(wrong(&["shard", "release"]).contains("KEYSPACE"));
    assert!(wrong(&["shard", "release", "kv"]).contains("SHARD"));
    wrong(&["shard", "release", "--all", "kv", "s1"]);
    wrong(&["shard", "release", "kv", "s1", "--reason", "died"]);
    for asks in [&["shard", "release", "--all"][..], &["shard", "release", "--all", "kv", "--reason", "died"]]
    {
        assert_eq!(partage(asks).status.code(), Some(3), "nobody listens");
    }
}

#[test]
fn a_usage_line_does_not_ask_for_what_the_environment_gives() {
    let list = Command::new(env!("CARGO_BIN_EXE_partage"))
        .args(["shard", "list"])
        .env("PARTAGE_COORDINATOR", "127.0.0.1:7400")
        .output()
        .unwrap();
    let said = String::from_utf8(list.stderr).unwrap();
    assert!(said.contains("Usage: partage shard list <KEYSPACE>"), "{said}");
}

/// Verbs without `--dry-run`, and why each needs none.
const WITHOUT_DRY_RUN: [(&str, &[&str]); 4] = [
    (
        "it only reads",
        &[
            "status",
            "events",
            "explain",
            "simulate",
            "completions",
            "node list",
            "node show",
            "keyspace list",
            "keyspace show",
            "shard list",
            "shard show",
            "plan list",
            "plan show",
            "brake show",
            "coordinator list",
            "dataset list",
            "dataset status",
            "dataset versions",
            "dataset get",
            "dataset scan",
            "dataset inspect",
            "dataset verify",
            "table list",
            "table show",
            "table get",
            "table scan",
            "table feed",
            "table check",
            "table backup list",
            "table backup verify",
            "table index list",
            "table index query",
            "shuffle bounds",
            "shuffle list",
            "shuffle show",
        ],
    ),
    ("it runs until it is stopped", &["up", "router", "dataset serve", "table serve", "shuffle serve"]),
    (
        "it writes new files where it is told to, and changes nothing that runs",
        &["backup", "check", "man", "dataset build"],
    ),
    ("nodes look for new versions by themselves, and it only has them look now", &["dataset refresh"]),
];

/// The help of a command.
fn help_of(words: &[&str]) -> String {
    let output = partage(&[words, &["--help"]].concat());
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// All verbs: commands that have no commands of their own, each with its help.
fn verbs() -> Vec<(String, String)> {
    let (mut groups, mut verbs) = (vec![String::new()], Vec::new());
    while let Some(group) = groups.pop() {
        let help = help_of(&group.split_whitespace().collect::<Vec<_>>());
        let Some((_, list)) = help.split_once("\nCommands:\n") else {
            verbs.push((group, help));
            continue;
        };
        let commands = list.lines().take_while(|line| !line.is_empty());
        // What an explanation goes on with on the next line stands further to the right.
        let names = commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        let is_own = |name: &&str| !name.is_empty() && *name != "help";
        groups.extend(names.filter(is_own).map(|name| format!("{group} {name}").trim().to_owned()));
    }
    verbs
}

#[test]
fn every_verb_has_json_and_each_that_changes_something_has_a_dry_run() {
    let verbs = verbs();
    assert!(
        verbs.len() > 60 && verbs.iter().any(|(verb, _)| verb == "table index create"),
        "{}",
        verbs.len()
    );
    let excepted: BTreeSet<&str> =
        WITHOUT_DRY_RUN.iter().flat_map(|(_, verbs)| verbs.iter().copied()).collect();
    for (verb, help) in &verbs {
        let has = |flag: &str| help.split_whitespace().any(|word| word == flag);
        assert!(has("--json"), "{verb}: {help}");
        let is_excepted = excepted.contains(verb.as_str());
        assert!(
            has("--dry-run") != is_excepted,
            "{verb} is in WITHOUT_DRY_RUN: {is_excepted}; its help: {help}"
        );
    }
    let all: BTreeSet<&str> = verbs.iter().map(|(verb, _)| verb.as_str()).collect();
    assert!(excepted.is_subset(&all), "no verbs: {:?}", excepted.difference(&all).collect::<Vec<_>>());
}
