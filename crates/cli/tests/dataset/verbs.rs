//! Each verb: what it does, its `--json`, its exit codes, and its typical mistake.

use super::shop::{Node, Shop, dataset, eventually, partage};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

const FIRST: [&str; 2] = ["name,hex\nred,#f00\n", "name,hex\nblue,#00f\ngreen,#0f0\n"];
const VERBS: [&str; 14] = [
    "serve", "add", "remove", "list", "status", "versions", "refresh", "rollback", "release", "get", "scan",
    "build", "inspect", "verify",
];

#[test]
fn every_verb_has_help_and_refuses_a_flag_that_it_does_not_know() {
    let all = dataset(&["--help"]);
    for verb in VERBS {
        assert!(all.out.contains(&format!("  {verb} ")), "{verb}: {}", all.out);
        let help = dataset(&[verb, "--help"]);
        assert!(help.code == 0 && help.out.contains("Usage: ") && help.err.is_empty(), "{verb}: {help:?}");
        let wrong = dataset(&[verb, "--colour"]);
        assert!(
            wrong.code == 2 && wrong.err.contains("--colour") && wrong.out.is_empty(),
            "{verb}: {wrong:?}"
        );
        let wrong = dataset(&[verb, "--colour", "--json"]);
        let form: Value = serde_json::from_str(wrong.err.trim()).unwrap();
        assert_eq!((wrong.code, &form["error"]["exit_code"]), (2, &json!(2)), "{verb}");
    }
}

#[test]
fn add_says_what_it_would_do_does_it_and_does_not_undo_what_others_said() {
    let shop = Shop::new();
    let file = shop.source().join("colours/_dataset.toml");
    let dry = shop.add(&["--dry-run"]);
    assert!(
        dry.code == 0 && dry.out.starts_with("would write ") && dry.out.contains("key = \"name\""),
        "{dry:?}"
    );
    assert!(!file.exists());
    assert!(dry.out.contains("it has no version yet: write files to"), "{dry:?}");
    shop.write("1", &FIRST);
    let done = shop.add(&["--json"]).json();
    assert_eq!((&done["settings"]["key"], &done["dry_run"]), (&json!("name"), &json!(false)));
    let written = fs::read_to_string(&file).unwrap();
    assert_eq!(shop.add(&[]).code, 0, "the same once more is no change");
    let other = shop.add(&["--layout", "ordered"]);
    assert!(other.code == 4 && other.err.contains("has other settings already"), "{other:?}");
    assert!(other.err.contains("--replace") && fs::read_to_string(&file).unwrap() == written);
    assert_eq!(shop.add(&["--layout", "ordered", "--replace", "--dry-run"]).code, 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
    assert_eq!(shop.add(&["--layout", "ordered", "--replace"]).code, 0);
    for (arguments, code, says) in [
        (&["--layout", "sorted", "--replace"][..], 2, "hashed, ordered"),
        (&["--replication", "0", "--replace"], 2, "replication"),
        (&["--content-type", "a\nb", "--replace"], 2, "visible ASCII"),
    ] {
        let wrong = shop.add(arguments);
        assert!(wrong.code == code && wrong.err.contains(says), "{arguments:?}: {wrong:?}");
    }
    let at = shop.at();
    let column = ["add", "colours", "--source", &at, "--format", "csv", "--key", "nam", "--replace"];
    let wrong = dataset(&column);
    assert!(wrong.code == 1 && wrong.err.contains("no column \"nam\""), "{wrong:?}");
    assert!(wrong.err.contains("nothing was written"), "{wrong:?}");
    for (name, source) in
        [("../colours", at.as_str()), ("%2e", &at), ("a/b", &at), ("", &at), ("colours", "/nowhere")]
    {
        let wrong = dataset(&["add", name, "--source", source, "--format", "csv", "--key", "k"]);
        assert!(wrong.code == 2 && wrong.out.is_empty() && !wrong.err.is_empty(), "{wrong:?}");
    }
    let wrong = dataset(&["add", "colours"]);
    assert!(wrong.code == 2 && wrong.err.contains("--source"), "{wrong:?}");
    assert_eq!(fs::read_dir(shop.path("")).unwrap().count(), 1, "nothing was written beside the source");
}

/// Version 2 lost most of its keys, and is given to clients when a person says so.
fn holds_and_releases(node: &Node) {
    let refreshed = node.ask(&["refresh", "colours", "--wait"]);
    assert!(refreshed.code == 5 && refreshed.err.contains("version 2 is held"), "{refreshed:?}");
    assert_eq!(refreshed.err.matches("partage dataset release").count(), 1, "once is enough: {refreshed:?}");
    let told = node.ask(&["status", "colours"]);
    assert!(
        told.out.contains("1 key where version 1 has 3") && told.out.contains("dataset release"),
        "{told:?}"
    );
    assert_eq!(node.ask(&["get", "colours", "red"]).out, "#f00");
    assert_eq!(node.ask(&["release", "colours", "1"]).code, 4, "that one is not held");
    let foreseen = node.ask(&["release", "colours", "2", "--dry-run"]);
    assert!(foreseen.code == 0 && foreseen.out.contains("which is held: it has 1 key"), "{foreseen:?}");
    assert_eq!(node.ask(&["get", "colours", "red"]).out, "#f00", "it is held still");
    let released = node.ask(&["release", "colours", "2"]);
    assert!(released.code == 0 && released.out.contains("which was held: it has 1 key"), "{released:?}");
    assert!(!released.out.contains("dataset release"), "it is released: {released:?}");
}

#[test]
fn a_node_is_asked_from_the_first_version_to_the_last() {
    let shop = Shop::new();
    shop.write("1", &FIRST);
    assert_eq!(shop.add(&["--content-type", "text/plain", "--layout", "ordered"]).code, 0);
    let node = shop.node();
    let waited = node.ask(&["status", "colours", "--wait", "--json"]).json();
    assert_eq!(waited["versions"]["1"]["nodes"][&node.address]["state"], "ACTIVE");
    assert_eq!(node.ask(&["get", "colours", "red"]).out, "#f00");
    let got = node.ask(&["get", "colours", "red", "--json"]).json();
    assert_eq!(got, json!({ "key": "red", "value": "#f00", "version": "1" }));
    let absent = node.ask(&["get", "colours", "reed", "--json"]);
    let form: Value = serde_json::from_str(absent.err.trim()).unwrap();
    assert_eq!((absent.code, &form["error"]["kind"], absent.out.as_str()), (4, &json!("absent"), ""));
    for key in ["..", "../../etc/passwd", "%2e", "/etc/passwd", "//", "a/../red", &"k".repeat(20_000)] {
        let told = node.ask(&["get", "colours", key]);
        assert!(told.code == 4 && told.err.contains("has no key"), "{key:.20}: {told:?}");
    }
    let long = node.ask(&["get", "colours", &"k".repeat(70_000)]);
    assert!(long.code != 0 && long.out.is_empty() && !long.err.is_empty(), "{}", long.code);
    assert_eq!(node.ask(&["get", "../colours", "red"]).code, 4, "no such dataset");
    let list = node.ask(&["list"]);
    assert!(list.code == 0 && list.out.contains("colours") && list.out.contains("text/plain"), "{list:?}");
    assert_eq!(node.ask(&["list", "--json"]).json()["nodes"][&node.address]["coordination"], "unused");

    let scan = node.ask(&["scan", "colours", "--from", "c"]);
    assert_eq!((scan.code, scan.out.as_str()), (0, "green\t#0f0\nred\t#f00\n"));
    let one = node.ask(&["scan", "colours", "--prefix", "b", "--json"]).json();
    assert_eq!(one, json!({ "key": "blue", "value": "#00f" }));
    let wrong = node.ask(&["scan", "colours", "--limit", "1000000"]);
    assert!(wrong.code == 2 && wrong.err.contains("100000"), "{wrong:?}");

    shop.write("2", &["name,hex\nred,#e00\n"]);
    holds_and_releases(&node);
    eventually("version 2 is served", || node.ask(&["get", "colours", "red"]).out == "#e00");
    let versions = node.ask(&["versions", "colours", "--json"]).json();
    assert_eq!(versions.as_object().unwrap().len(), 2, "{versions}");

    let dry = node.ask(&["rollback", "colours", "1", "--dry-run"]);
    assert!(
        dry.code == 0 && dry.out.starts_with("would: clients of dataset colours get 1 instead of 2"),
        "{dry:?}"
    );
    assert_eq!(node.ask(&["get", "colours", "red"]).out, "#e00");
    for dry in [&["--dry-run"][..], &[]] {
        let none = node.ask(&[&["rollback", "colours", "day1"], dry].concat());
        assert!(none.code != 0 && none.err.contains("has no version day1: it has 1, 2"), "{none:?}");
        assert!(none.out.is_empty() && !none.err.contains("loads it first"), "{none:?}");
    }
    assert_eq!(node.ask(&["rollback", "colours", "1"]).code, 0);
    eventually("version 1 is served again", || node.ask(&["get", "colours", "red"]).out == "#f00");
    assert_eq!(node.ask(&["rollback", "colours", "--latest", "--json"]).json()["version"], Value::Null);
    eventually("version 2 is held again", || node.version("2")["state"] == "HELD");
    assert_eq!(node.ask(&["release", "colours", "2", "--json"]).json()["version"], "2");
    assert_eq!(node.ask(&["get", "colours", "red"]).out, "#e00");
    for wrong in
        [&["rollback", "colours"][..], &["rollback", "colours", "1", "--latest"], &["refresh", "--wait"]]
    {
        assert_eq!(node.ask(wrong).code, 2, "{wrong:?}");
    }
    let wrong = node.ask(&["rollback", "colours", "../1"]);
    assert!(wrong.code == 2 && wrong.err.contains("use letters, digits"), "{wrong:?}");
    for verb in ["status", "versions"] {
        let wrong = node.ask(&[verb, "colors"]);
        assert!(wrong.code == 4 && wrong.err.contains("there is no dataset \"colors\""), "{wrong:?}");
    }

    let at = shop.at();
    let dry = dataset(&["remove", "colours", "--source", &at, "--dry-run"]);
    assert!(dry.code == 0 && dry.out.starts_with("would: "), "{dry:?}");
    assert!(!fs::read_to_string(shop.source().join("colours/_dataset.toml")).unwrap().contains("served"));
    assert_eq!(dataset(&["remove", "colours", "--source", &at, "--yes", "--json"]).json()["served"], false);
    eventually("it is served no more", || node.ask(&["get", "colours", "red"]).code == 4);
    assert!(shop.source().join("colours/2/part-0.csv").exists(), "its files stay");
    let wrong = dataset(&["remove", "colors", "--source", &at]);
    assert!(wrong.code == 4 && wrong.err.contains("it has colours"), "{wrong:?}");
}

#[test]
fn a_version_and_a_source_that_cannot_be_read_are_told_by_list_and_status() {
    let shop = Shop::new();
    shop.write("1", &FIRST);
    assert_eq!(shop.add(&[]).code, 0);
    let node = shop.node();
    assert_eq!(node.ask(&["status", "colours", "--wait"]).code, 0);
    shop.write("2", &["name,hex\nred\n"]);
    eventually("version 2 is an error", || node.version("2")["state"] == "ERROR");
    let says = "colours/2/part-0.csv: line 2";
    for verb in [&["status", "colours"][..], &["versions", "colours"], &["list"]] {
        let told = node.ask(verb);
        assert!(told.code == 0 && told.out.contains(says), "{verb:?}: {told:?}");
    }
    let waited = node.ask(&["refresh", "colours", "--wait"]);
    assert!(waited.code == 1 && waited.err.contains(says), "{waited:?}");
    assert_eq!(node.ask(&["get", "colours", "red"]).out, "#f00", "the old one serves");
    // A trouble of its own stays in sight when all of the source is away.
    let settings = shop.source().join("colours/_dataset.toml");
    let before = fs::read(&settings).unwrap();
    fs::write(&settings, "format = 'xml'").unwrap();
    let own = "colours cannot be read from the source at ";
    eventually("its settings are wrong", || node.ask(&["status", "colours"]).out.contains(own));
    let away = shop.path("away");
    fs::rename(shop.source(), &away).unwrap();
    let errors = || node.ask(&["status", "colours", "--json"]).json()["source_errors"][&node.address].take();
    let all = || {
        let told = node.ask(&["status", "colours", "--json"]).json();
        told["nodes"][&node.address]["source_error"]["times"].as_u64().unwrap_or(0)
    };
    eventually("the source is told to be away", || all() >= 2);
    for verb in [&["status", "colours"][..], &["list"]] {
        let told = node.ask(verb);
        let line = told.out.lines().find(|line| line.starts_with("the source cannot be read at "));
        assert!(
            line.is_some_and(|line| line.contains("not there (404)") && line.contains(" times: ")),
            "{told:?}"
        );
        assert!(told.out.contains(own) && told.out.contains("xml"), "{told:?}");
    }
    fs::rename(&away, shop.source()).unwrap();
    fs::write(&settings, before).unwrap();
    shop.write("2", &["name,hex\nred,#e00\nblue,#00e\n"]);
    eventually("it is mended", || node.ask(&["get", "colours", "red"]).out == "#e00" && errors().is_null());
}

/// Seen before: such folders were passed over without a word, and their authors waited for the version.
#[test]
fn a_folder_whose_name_is_no_version_is_told_by_add_by_status_and_in_the_log() {
    let shop = Shop::new();
    shop.write("1", &["name,hex\nred,f00\n"]);
    let names = ["2024_final copy", "tmp.v1~"];
    for name in names {
        let folder = shop.source().join("colours").join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("part-0.csv"), "name,hex\nred,00f\n").unwrap();
    }
    // Those are for what is beside versions.
    std::fs::create_dir(shop.source().join("colours/_temporary")).unwrap();
    let why = |name: &str, found: char, at: usize| {
        format!("the version {name:?} has {found:?} at byte {at}: use letters, digits, - and _ only")
    };
    let whys = [why(names[0], ' ', 10), why(names[1], '.', 3)];
    let added = shop.add(&[]);
    assert_eq!(added.code, 0, "{added:?}");
    for why in &whys {
        let warning = format!("warning: a folder is no version, and is passed over: {why}\n");
        assert!(added.err.contains(&warning), "{added:?}");
    }
    assert!(!added.err.contains("_temporary"), "{added:?}");
    let log = tempfile::NamedTempFile::new().unwrap();
    let node = shop.node_logging(&shop.path("node"), partage(), log.reopen().unwrap().into());
    eventually("the version that is one is served", || node.version("1")["state"] == "ACTIVE");
    let status = || node.ask(&["status", "colours"]);
    assert_eq!(node.ask(&["status", "colours", "--json"]).json()["refused"], json!(whys));
    for why in &whys {
        let line = format!("colours: a folder is passed over: {why}");
        let told = status();
        assert!(told.out.lines().any(|said| said == line), "{told:?}");
    }
    let lines = |why: &str| {
        let log = std::fs::read_to_string(log.path()).unwrap();
        let quoted = why.replace('"', "\\\"");
        log.lines().filter(|line| line.contains("is no version") && line.contains(&quoted)).count()
    };
    // It looks every second, and says what is new.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(
        whys.each_ref().map(|why| lines(why)),
        [1, 1],
        "{}",
        std::fs::read_to_string(log.path()).unwrap()
    );
    std::fs::rename(shop.source().join("colours").join(names[0]), shop.source().join("colours/2024_final"))
        .unwrap();
    eventually("a folder that got a name is a version", || node.version("2024_final")["state"] == "ACTIVE");
    let told = status();
    assert!(!told.out.contains(names[0]) && told.out.contains(names[1]), "{told:?}");
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let shop = Shop::new();
    shop.write("1", &FIRST);
    let (at, none) = (shop.at(), shop.path("none").display().to_string());
    let built = shop.path("built").display().to_string();
    for (arguments, code, says) in [
        (&["add", "colours", "--source", &none][..], 2, "there is no folder"),
        (&["add", "colours", "--source", "s3:/bucket"], 2, "such as s3://bucket/prefix"),
        (&["add", "colours", "--source", "s3://"], 2, "names no bucket"),
        (&["add", "colours", "--source", "foo://bar"], 2, "no source has the scheme foo"),
        (&["add", "colors", "--source", &at], 4, "it has colours"),
        (&["build", "colors", "--source", &at, "--out", &built], 4, "it has colours"),
        (&["build", "colours", "9", "--source", &at, "--out", &built], 4, "has no version 9: it has 1"),
        (&["verify", &at], 2, "is a folder"),
        (&["inspect", &none], 1, "none"),
        (&["rollback", "colours", "a/b", "--node", "127.0.0.1:9"], 2, "use letters, digits"),
    ] {
        let told = dataset(arguments);
        assert!(told.code == code && told.err.contains(says), "{arguments:?}: {told:?}");
    }
    let node = shop.node();
    eventually("the node has looked", || node.ask(&["get", "colors", "red"]).code == 4);
    let told = node.ask(&["get", "colors", "red"]);
    assert!(told.err.contains("partage dataset list") && !told.err.contains("GET /"), "{told:?}");
}

#[test]
fn nobody_who_listens_and_no_address_are_told_apart() {
    for verb in [&["list"][..], &["status", "a"], &["versions", "a"], &["refresh"], &["get", "a", "b"]] {
        let told = dataset(&[verb, &["--node", "127.0.0.1:9"]].concat());
        assert!(
            told.code == 3 && told.err.contains("127.0.0.1:9") && told.out.is_empty(),
            "{verb:?}: {told:?}"
        );
        assert!(told.err.contains("partage dataset serve"), "{verb:?}: {told:?}");
    }
    let shop = Shop::new();
    let at = shop.at();
    for (arguments, says) in [
        (&["serve"][..], "--source"),
        (&["serve", "--source", &at, "--listen", "here"], "--listen \"here\" is no address"),
        (&["serve", "--source", &at, "--cluster", "a/b"], "letters, digits"),
        (&["serve", "--source", &at, "--replication", "1", "--min-replication", "2"], "2"),
    ] {
        let told = dataset(arguments);
        assert!(told.code == 2 && told.err.contains(says), "{arguments:?}: {told:?}");
    }
    let told = dataset(&["serve", "--source", "/nowhere/at/all"]);
    assert!(told.code == 2 && told.err.contains("there is no folder /nowhere/at/all"), "{told:?}");
}

#[test]
fn store_files_are_built_looked_into_and_verified() {
    let shop = Shop::new();
    shop.write("1", &FIRST);
    assert_eq!(shop.add(&[]).code, 0);
    let (at, out) = (shop.at(), shop.path("out"));
    let built =
        dataset(&["build", "colours", "--source", &at, "--out", out.to_str().unwrap(), "--json"]).json();
    assert_eq!((&built["partitions"], &built["keys"]), (&json!(2), &json!(3)));
    let again = dataset(&["build", "colours", "1", "--source", &at, "--out", out.to_str().unwrap()]);
    assert!(again.code == 1 && again.err.contains("there already"), "{again:?}");
    for version in ["7", "..", "../../x"] {
        let wrong = dataset(&["build", "colours", version, "--source", &at, "--out", out.to_str().unwrap()]);
        assert!(wrong.code != 0 && wrong.out.is_empty(), "{version}: {wrong:?}");
    }
    let file = out.join("colours/1/00000.partage");
    let name = file.to_str().unwrap();
    assert_eq!(dataset(&["verify", name, "--json"]).json()["sound"], true);
    let told = dataset(&["inspect", name]);
    assert!(told.code == 0 && told.out.contains("layout") && told.out.contains("hashed"), "{told:?}");
    assert_eq!(dataset(&["inspect", name, "--json"]).json()["format"], 1);
    // A flipped bit anywhere is found, and its place named.
    let whole = fs::read(&file).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 12) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x20;
        fs::write(&file, bytes).unwrap();
        let told = dataset(&["verify", name]);
        assert!(told.code == 1 && told.err.contains("00000.partage: offset "), "{at}: {told:?}");
    }
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    for verb in ["inspect", "verify"] {
        assert_eq!(dataset(&[verb, name]).code, 1, "{verb} of half a file");
        let wrong = dataset(&[verb, "/nowhere.partage"]);
        assert!(wrong.code == 1 && wrong.err.contains("/nowhere.partage"), "{wrong:?}");
        assert_eq!(dataset(&[verb]).code, 2);
    }
}

#[test]
fn bad_rows_are_left_out_told_and_listed_as_the_flags_say() {
    let shop = Shop::new();
    shop.write("1", &["id;tenant;v\n1;a;'x;y'\n2\n3;b;z\n"]);
    let (at, out) = (shop.at(), shop.path("out"));
    let build = |more: &[&str]| {
        let common = ["build", "colours", "--source", &at, "--out", out.to_str().unwrap()];
        let read =
            ["--key", "id", "--partition-by", "tenant", "--value", "v", "--delimiter", ";", "--quote", "'"];
        dataset(&[&common[..], &read, more].concat())
    };
    let strict = build(&[]);
    assert!(strict.code == 1 && strict.err.contains("line 3"), "{strict:?}");
    let wrong = build(&["--max-bad-rows", "few"]);
    assert!(wrong.code == 2 && wrong.err.contains("0.5%"), "{wrong:?}");
    let built = build(&["--max-bad-rows", "1"]);
    assert!(built.code == 0 && built.out.contains("1 bad row was left out"), "{built:?}");
    assert!(built.out.contains("java-bytes:1/2"), "{built:?}");
    let list = fs::read_to_string(out.join("colours/1/_rejects.jsonl")).unwrap();
    assert!(list.contains("\"line\":3") && list.lines().count() == 1, "{list}");
}

/// What a failure names is there to be read, also where the build was on its way to a URL.
#[test]
fn where_there_are_too_many_bad_rows_the_list_of_them_stays() {
    let shop = Shop::new();
    shop.write("1", &["id,v\n1,a\n2\n3\n"]);
    let (at, work) = (shop.at(), shop.path("work"));
    for (out, to) in ["out", "bucket"].map(|out| (out, shop.path(out))) {
        fs::create_dir_all(&work).unwrap();
        fs::create_dir_all(&to).unwrap();
        let to = if out == "out" { to.display().to_string() } else { format!("file://{}", to.display()) };
        let common =
            ["build", "colours", "--source", &at, "--out", &to, "--work-dir", work.to_str().unwrap()];
        let failed =
            dataset(&[&common[..], &["--key", "id", "--value", "v", "--max-bad-rows", "1"]].concat());
        assert_eq!(failed.code, 1, "{failed:?}");
        let list = failed.err.split_whitespace().map(|word| word.trim_end_matches([':', ',']));
        let list = list.into_iter().find(|word| word.ends_with("_rejects.jsonl"));
        let list = fs::read_to_string(list.unwrap_or_else(|| panic!("{failed:?}")));
        assert_eq!(list.unwrap_or_else(|error| panic!("{error}: {failed:?}")).lines().count(), 2);
    }
}

#[test]
fn what_is_built_to_a_url_is_a_version_at_once_and_only_once() {
    let shop = Shop::new();
    shop.write("1", &FIRST);
    assert_eq!(shop.add(&[]).code, 0);
    let (at, out) = (shop.at(), shop.path("bucket"));
    fs::create_dir_all(&out).unwrap();
    let url = format!("file://{}", out.display());
    let build = || dataset(&["build", "colours", "--source", &at, "--out", &url]);
    let built = build();
    assert!(built.code == 0 && built.out.contains(&format!("{url}/colours/1: 3 keys")), "{built:?}");
    let link = fs::read_to_string(out.join("colours/1/_SYMLINK")).unwrap();
    assert!(link.starts_with("_built-1-"), "{link}");
    let files: Vec<_> = fs::read_dir(out.join("colours").join(&link)).unwrap().collect();
    assert_eq!(files.len(), 4, "two store files, the manifest and _SUCCESS: {files:?}");
    let again = build();
    assert!(again.code == 1 && again.err.contains("a version of that name already"), "{again:?}");
    // It is a source like any other.
    let added = dataset(&["add", "colours", "--source", &url]);
    assert!(added.code == 0 && added.out.contains("version 1: 2 files, 2 partitions"), "{added:?}");
    let nowhere = dataset(&["build", "colours", "--source", &at, "--out", &url, "--work-dir", "/nowhere"]);
    assert!(nowhere.code != 0, "{nowhere:?}");
}

#[test]
fn a_node_that_loads_thousands_of_partitions_stops_when_it_is_asked_to() {
    let shop = Shop::new();
    let folder = shop.source().join("colours/1");
    fs::create_dir_all(&folder).unwrap();
    // Mixed files, and memory for two partitions at a time: all files are read a thousand times, which takes hours.
    for file in 0..2_000 {
        let rows: String = (0..20).map(|row| format!("key-{file}-{row},value\n")).collect();
        fs::write(folder.join(format!("part-{file:05}.csv")), format!("name,hex\n{rows}")).unwrap();
    }
    assert_eq!(shop.add(&[]).code, 0);
    let node = shop.node();
    eventually("it loads", || node.version("1")["loading"]["bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    let told = node.version("1");
    assert_eq!(told["state"], "BUILDING", "{told}");
    let ended = node.stop();
    assert!(ended.is_some_and(|ended| ended.success()), "{ended:?}");
}
