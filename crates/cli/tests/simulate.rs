//! `partage simulate` as its users run it: good input in every form, and each way to get it wrong.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use flate2::{Compression, write::GzEncoder};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn run_with(stdin: &[u8], args: &[&str]) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_partage"))
        .arg("simulate")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let out = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: out.status.code().unwrap(), stdout: text(out.stdout), stderr: text(out.stderr) }
}

fn json(stdin: &[u8], args: &[&str]) -> Value {
    let ran = run_with(stdin, &[args, &["--json", "--no-timing"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

fn some_keys() -> Vec<u8> {
    (0..2_000).map(|i| format!("key-{i:04}\n")).collect::<String>().into_bytes()
}

fn file(dir: &TempDir, name: &str, content: &[u8]) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

fn packages() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../samples/debian-bookworm-packages.jsonl.gz")
}

#[test]
fn the_package_names_come_out_as_one_table() {
    let path = packages();
    let ran = run_with(
        b"",
        &[
            "--keys",
            path.to_str().unwrap(),
            "--field",
            "package",
            "--nodes",
            "8",
            "--scheme",
            "modulo,jump,fixed",
            "--event",
            "join:1",
        ],
    );
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout.starts_with("63436 keys from "), "{}", ran.stdout);
    let rows: Vec<&str> =
        ran.stdout.lines().filter(|line| line.starts_with("modulo") || line.starts_with("jump")).collect();
    assert!(rows.len() == 2 && rows[0].contains("88.") && rows[1].contains("11."), "{}", ran.stdout);
}

#[test]
fn the_usual_table_fits_110_columns() {
    let ran = run_with(&some_keys(), &["--keys", "-", "--nodes", "8"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 110), "{}", ran.stdout);
    for scheme in [
        "modulo",
        "ring-1 ",
        "ring-100",
        "rendezvous",
        "jump",
        "salted-16",
        "fixed-",
        "hash-range-",
        "key-range-",
        "key-even-",
    ] {
        assert!(ran.stdout.lines().any(|line| line.starts_with(scheme)), "{scheme} in {}", ran.stdout);
    }
}

#[test]
fn json_has_everything_and_the_same_input_gives_the_same_bytes() {
    let ask = || {
        run_with(&some_keys(), &["--keys", "-", "--nodes", "8", "--zones", "2", "--json", "--no-timing"])
            .stdout
    };
    let text = ask();
    assert_eq!(text, ask());
    let all: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(all["scenes"].as_array().unwrap().len(), 5);
    let modulo = &all["schemes"][0];
    assert_eq!(modulo["name"], "modulo");
    let step = &modulo["steps"][1];
    let part =
        step["moved"]["keys"]["moved"].as_f64().unwrap() / step["moved"]["keys"]["of"].as_f64().unwrap();
    assert!((part - 8.0 / 9.0).abs() < 0.03, "{part}");
    let held: u64 = step["nodes"].as_array().unwrap().iter().map(|node| node["keys"].as_u64().unwrap()).sum();
    assert_eq!((held, step["nodes"].as_array().unwrap().len()), (2_000, 9));
    assert_eq!(step["zones"].as_object().unwrap().len(), 2);
    assert!(
        step["memory_bytes"].as_u64().unwrap() > 0 && step["hottest_keys"].as_array().unwrap().len() == 5
    );
    assert!(modulo["lookups_per_s"].is_null(), "--no-timing");
    let timed = run_with(&some_keys(), &["--keys", "-", "--nodes", "2", "--scheme", "jump", "--json"]);
    let timed: Value = serde_json::from_str(&timed.stdout).unwrap();
    assert!(timed["schemes"][0]["lookups_per_s"].as_f64().unwrap() > 1_000.0);
}

#[test]
fn keys_come_in_every_form() {
    let dir = TempDir::new().unwrap();
    let csv = "id,name,load\n1,a,5\n2,\"b,b\",7\n";
    let zipped = {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(csv.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let objects = b"{\"k\":\"a\",\"w\":5,\"n\":1}\n\n{\"k\":\"b,b\",\"w\":\"7\",\"n\":2}\n";
    let (csv, gz) = (file(&dir, "k.csv", csv.as_bytes()), file(&dir, "k.csv.gz", &zipped));
    let tsv = file(&dir, "k.tsv", b"a\t5\nb,b\t7\n");
    let jsonl = file(&dir, "k.jsonl", objects);
    let lines = file(&dir, "k.txt", b"a\t5\r\nb,b\t7\t99\n\n");
    for args in [
        &["--keys", &csv, "--column", "name", "--weight", "load"][..],
        &["--keys", &gz, "--column", "name", "--weight", "load"],
        &["--keys", &tsv, "--no-header", "--column", "1", "--weight", "2"],
        &["--keys", &jsonl, "--field", "k", "--weight", "w"],
        &["--keys", &lines],
    ] {
        let all = json(b"", &[args, &["--nodes", "2", "--scheme", "modulo", "--event", "join:1"]].concat());
        assert_eq!(
            (all["scenes"][0]["keys"].as_u64(), all["scenes"][0]["weight"].as_f64()),
            (Some(2), Some(12.0))
        );
        assert_eq!(all["schemes"][0]["steps"][0]["hottest_keys"][0]["key"], "b,b", "{args:?}");
    }
    let all = json(
        b"",
        &[
            "--keys", &jsonl, "--field", "n", "--bytes", "w", "--nodes", "1", "--scheme", "jump", "--event",
            "grow:1",
        ],
    );
    assert_eq!(all["scenes"][0]["bytes"], 12);
    let logged =
        json(b"a\nb\na\na\n", &["--keys", "-", "--nodes", "1", "--scheme", "jump", "--event", "grow:1"]);
    assert_eq!(
        (logged["scenes"][0]["keys"].as_u64(), logged["scenes"][0]["weight"].as_f64()),
        (Some(2), Some(4.0))
    );
}

#[test]
fn the_page_stands_alone() {
    let dir = TempDir::new().unwrap();
    let page = dir.path().join("page.html");
    let keys = b"<script>alert(1)</script>\na\nb\nc\n";
    let ran = run_with(keys, &["--keys", "-", "--nodes", "3", "--html", page.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("page written to"), "{}", ran.stderr);
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.matches("<svg").count() >= 12 && html.contains("prefers-color-scheme"));
    for outside in ["<script", "src=", "http://", "https://", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
    let ran = run_with(keys, &["--keys", "-", "--nodes", "3", "--html", "/no/such/folder/x.html"]);
    assert!(ran.code == 1 && ran.stderr.contains("/no/such/folder/x.html"), "{}", ran.stderr);
}

/// Runs what must fail; gives what it said, which must not be on stdout.
fn refused(code: i32, stdin: &[u8], args: &[&str]) -> String {
    let ran = run_with(stdin, args);
    assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{args:?}: {}", ran.stderr);
    ran.stderr
}

#[test]
fn wrong_usage_is_exit_code_2_and_says_the_way_out() {
    let keys = some_keys();
    for (args, said) in [
        (&["--scheme", "jumpp"][..], "did you mean jump?"),
        (&["--scheme", "fixed-64+balancd"], "did you mean fixed-64+balanced?"),
        (&["--scheme", "salted-1"], "2 to 100"),
        (&["--hash", "murmur"], "did you mean murmur3"),
        (&["--event", "jion:1"], "did you mean join?"),
        (&["--event", "grow:much"], "a number is needed"),
        (&["--event", "grow:0.5"], "from 1 to"),
        (&["--event", "hot:nobody:50"], "not in the sample"),
        (&["--event", "hot::NaN"], "from 0 to"),
        (&["--event", "hot::100%"], "less than 100 %"),
        (&["--event", "leave:n33"], "did you mean n3?"),
        (&["--capacity", "0"], "from 1 to"),
        (&["--capacity", "n9=2"], "n1 to n8"),
        (&["--zones", "0"], "--zones 1 or more"),
        (&["--weight", "load"], "--column or --field"),
        (&["--column", "a", "--field", "b"], "--column is for CSV"),
    ] {
        let stderr = refused(2, &keys, &[&["--keys", "-", "--nodes", "8"], args].concat());
        assert!(stderr.starts_with("error: ") && stderr.contains(said), "{args:?}: {stderr}");
    }
    for (nodes, said) in
        [("0", "--nodes 1 or more"), ("40001", "the limit is 40000"), ("-3", "error"), ("x", "error")]
    {
        let stderr = refused(2, &keys, &["--keys", "-", "--nodes", nodes]);
        assert!(stderr.contains(said), "{nodes}: {stderr}");
    }
    assert!(refused(2, &keys, &["--nodes", "3"]).contains("--keys"));
    assert!(refused(2, b"", &["--keys", "x.jsonl", "--nodes", "3"]).contains("--field NAME"));
}

#[test]
fn unknown_columns_and_fields_are_told_the_nearest() {
    let dir = TempDir::new().unwrap();
    let csv = file(&dir, "k.csv", b"package,size\na,1\n");
    let jsonl = file(&dir, "k.jsonl", b"{\"package\":\"a\",\"size\":1}\n");
    for args in [&["--keys", &csv, "--column", "packge"][..], &["--keys", &jsonl, "--field", "pakage"]] {
        let stderr = refused(2, b"", &[args, &["--nodes", "2"]].concat());
        assert!(stderr.contains("did you mean \"package\"?"), "{stderr}");
    }
    let stderr =
        refused(2, b"", &["--keys", &csv, "--weight", "siez", "--column", "package", "--nodes", "2"]);
    assert!(stderr.contains("did you mean \"size\"?"), "{stderr}");
}

#[test]
fn bad_files_are_exit_code_1_and_name_the_line() {
    let dir = TempDir::new().unwrap();
    let long = [b"ok\n".as_slice(), &[b'k'; 4_097], b"\n"].concat();
    let mut cut = GzEncoder::new(Vec::new(), Compression::default());
    cut.write_all(&some_keys()).unwrap();
    let cut = cut.finish().unwrap();
    for (name, content, args, said) in [
        ("empty", &b""[..], &[][..], "no key in"),
        ("blank", b"\n\n", &[], "no key in"),
        ("long", &long, &[], "line 2: a key of 4097 bytes is too long: the limit is 4096"),
        ("nan", b"a\t1\nb\tNaN\n", &[], "line 2: \"NaN\" is no weight"),
        ("negative", b"a\t-1\n", &[], "line 1: \"-1\" is no weight"),
        ("infinite", b"a\tinf\n", &[], "line 1: \"inf\" is no weight"),
        ("word", b"a\t1\tmany\n", &[], "line 1: \"many\" is no number of bytes"),
        (
            "nan.csv",
            b"k,w\na,1\nb,nan\n",
            &["--weight", "w", "--column", "k"],
            "line 3: \"nan\" is no weight",
        ),
        ("ragged.csv", b"k,w\na,1\nb\n", &["--column", "k"], "line 3"),
        ("broken.jsonl", b"{\"k\":\"a\"}\n{\"k\":\n", &["--field", "k"], "line 2: this is no JSON object"),
        ("list.jsonl", b"{\"k\":[1]}\n", &["--field", "k"], "line 1: \"k\" is neither a text nor a number"),
        ("hole.jsonl", b"{\"k\":\"a\"}\n{\"j\":\"a\"}\n", &["--field", "k"], "line 2: there is no \"k\""),
        ("header.csv", b"k,w\n", &["--column", "k"], "no key in"),
        ("cut.gz", &cut[..cut.len() / 2], &[], "cannot read"),
    ] {
        let path = file(&dir, name, content);
        let stderr = refused(1, b"", &[&["--keys", &path, "--nodes", "2"], args].concat());
        assert!(stderr.contains(said), "{name}: {stderr}");
    }
    assert!(
        refused(1, b"", &["--keys", "/no/such/file", "--nodes", "2"]).contains("cannot open /no/such/file")
    );
}

/// One line in a hundred may be unusable: it is left out, counted and told. More is a file that is not what it was taken for.
#[test]
fn a_few_bad_lines_are_left_out_and_told_and_many_end_it() {
    let dir = TempDir::new().unwrap();
    let lines = |good: &str, bad: &str, bad_at: &[usize]| -> Vec<u8> {
        let line = |at: usize| {
            if bad_at.contains(&at) { bad.to_owned() } else { good.replace('#', &at.to_string()) }
        };
        (1..=300).map(line).collect::<String>().into_bytes()
    };
    for (name, head, good, bad, args, first) in [
        ("plain", "", "key#\t1\n", "key\tmuch\n", &[][..], "line 7: \"much\" is no weight"),
        ("ragged.csv", "k,w\n", "key#,1\n", "key\n", &["--column", "k"], "line 8"),
        (
            "broken.jsonl",
            "",
            "{\"k\":\"#\"}\n",
            "{\"k\":\n",
            &["--field", "k"],
            "line 7: this is no JSON object",
        ),
    ] {
        let content = |bad_at: &[usize]| [head.as_bytes(), &lines(good, bad, bad_at)].concat();
        let few = file(&dir, name, &content(&[7, 100, 200]));
        let args = |path: &str| -> Vec<String> {
            ["--keys", path, "--nodes", "2"].iter().chain(args).map(|arg| arg.to_string()).collect()
        };
        let words = args(&few);
        let ran = run_with(b"", &words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(ran.code, 0, "{name}: {}", ran.stderr);
        assert!(ran.stdout.starts_with("297 keys"), "{name}: {}", ran.stdout);
        assert!(
            ran.stderr.contains("3 of 300 lines") && ran.stderr.contains(first),
            "{name}: {}",
            ran.stderr
        );
        assert_eq!(json(b"", &words.iter().map(String::as_str).collect::<Vec<_>>())["left_out_lines"], 3);

        let many = file(&dir, name, &content(&[7, 100, 200, 250]));
        let words = args(&many);
        let stderr = refused(1, b"", &words.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(stderr.contains("4 of 300 lines") && stderr.contains(first), "{name}: {stderr}");
    }
}

#[test]
fn errors_are_json_when_asked_and_a_key_of_the_limit_is_taken() {
    let stderr = refused(1, b"", &["--keys", "-", "--nodes", "2", "--json"]);
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!(
        error["error"],
        serde_json::json!({
            "kind": "failed",
            "message": "there is no key in stdin: give a file with at least one key, one a line",
            "help": "give a file with at least one key, one a line",
            "exit_code": 1,
        })
    );
    let all = json(&[b'k'; 4_096], &["--keys", "-", "--nodes", "2"]);
    assert_eq!(all["scenes"][0]["bytes"], 4_096);
}

/// The hash schemes of the first run in the book, and those of it that the README shows: what is printed there is
/// what comes out. Policies are left out, as they may get better.
#[test]
fn the_figures_of_the_book_and_the_readme_are_those_that_come_out() {
    let path = packages();
    let args = ["--keys", path.to_str().unwrap(), "--field", "package", "--nodes", "8", "--no-timing"];
    let events = ["--event", "join:1", "--event", "leave:n4"];
    for (document, schemes, rows) in [
        ("docs/src/simulate.md", "modulo,ring-1,ring-100,rendezvous,jump,salted-16,key-even-8", 7),
        ("README.md", "modulo,jump,rendezvous,key-even-8", 4),
    ] {
        let ran = run_with(b"", &[&args[..], &events, &["--scheme", schemes]].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let text =
            std::fs::read_to_string(format!("{}/../../{document}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let figures = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let printed: Vec<Vec<String>> = text.lines().map(figures).collect();
        let came_out = ran.stdout.lines().filter(|line| line.contains(" - ")).map(figures);
        let mut compared = 0;
        for row in came_out {
            assert!(printed.contains(&row), "{document} lacks {row:?}");
            compared += 1;
        }
        assert_eq!(compared, rows, "{}", ran.stdout);
    }
}
