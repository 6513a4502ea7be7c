//! Versions that cannot be read: the old one serves, the new one is ERROR with file, place and reason in status, log and
//! metric, and it is loaded when it was mended.

use super::log;
use super::test_cluster::{TestCluster, get, until};
use partage_dataset::node::NodeOptions;
use partage_dataset::source::{Settings, Source, SourceRetryPolicy, Throttle};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A dataset, a version of it that is good, one that is not, and what must be said of that.
struct Case {
    dataset: &'static str,
    settings: &'static str,
    good: Vec<(&'static str, Vec<u8>)>,
    bad: Vec<(&'static str, Vec<u8>)>,
    says: [&'static str; 2],
}

fn vector(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/datasets");
    fs::read(folder.join(name)).unwrap()
}

fn changed(name: &str, from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = vector(name);
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    bytes[at..at + from.len()].copy_from_slice(to);
    bytes
}

/// Cases of damaged SequenceFiles.
fn sequence_files() -> Vec<Case> {
    let whole = vector("block-gzip.seq");
    let cut = whole[..whole.len() - 30].to_vec();
    let mut flipped = vector("block-bzip2.seq");
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x10;
    vec![
        Case {
            dataset: "cut-off",
            settings: "",
            good: vec![("part-0", vector("block-gzip.seq"))],
            bad: vec![("part-0", cut)],
            says: ["cut-off/2/part-0: offset ", "cut off"],
        },
        Case {
            dataset: "corrupt",
            settings: "",
            good: vec![("part-0", vector("block-bzip2.seq"))],
            bad: vec![("part-0", flipped)],
            says: ["corrupt/2/part-0: offset ", ""],
        },
        Case {
            dataset: "codec",
            settings: "",
            good: vec![("part-0", vector("record-bzip2.seq"))],
            bad: vec![("part-0", changed("record-bzip2.seq", b"BZip2Codec", b"BZip9Codec"))],
            says: ["codec/2/part-0: offset ", "BZip9Codec, which cannot be read here"],
        },
    ]
}

/// Of text, and of whole versions.
fn others() -> Vec<Case> {
    let text = |text: &str| text.as_bytes().to_vec();
    let csv = "key = 'k'\nvalues = ['v']\n";
    let good_csv = || vec![("part-0.csv", text("k,v\na,1\nb,2\n"))];
    vec![
        Case {
            dataset: "mixed",
            settings: csv,
            good: good_csv(),
            bad: vec![
                ("part-0.csv", text("k,v\na,1\n")),
                ("part-1.jsonl", text("{\"k\":\"b\",\"v\":\"2\"}\n")),
            ],
            says: ["mixed/2/part-1.jsonl is ", "take out what does not belong"],
        },
        Case {
            dataset: "column",
            settings: csv,
            good: good_csv(),
            bad: vec![("part-0.csv", text("key,v\na,1\n"))],
            says: ["column/2/part-0.csv: line 1", "no column \"k\""],
        },
        Case {
            dataset: "row",
            settings: csv,
            good: good_csv(),
            bad: vec![("part-0.csv", text("k,v\na,1\nb,2\nc\n"))],
            says: ["row/2/part-0.csv: line 4: ", "1 fields where the first row has 2"],
        },
        Case {
            dataset: "quote",
            settings: csv,
            good: good_csv(),
            bad: vec![("part-0.csv", text("k,v\na,1\nb,\"2\n"))],
            says: ["quote/2/part-0.csv: line 3: ", "the file ends within a quoted field: cut off"],
        },
        Case {
            dataset: "gzip",
            settings: csv,
            good: good_csv(),
            bad: vec![("part-0.csv.gz", text("k,v\na,1\n"))],
            says: ["gzip/2/part-0.csv.gz", "not gzip"],
        },
        Case {
            dataset: "range",
            settings: csv,
            good: good_csv(),
            bad: vec![("00009.partage", vec![0; 200]), ("_manifest.json", text("{}"))],
            says: ["range/2/_manifest.json: ", ""],
        },
        Case {
            dataset: "folder",
            settings: csv,
            good: good_csv(),
            bad: vec![("more/part-0.csv", text("k,v\na,1\n")), ("part-0.csv", text("k,v\na,1\n"))],
            says: ["folder/2/more: ", "a folder in a version"],
        },
    ]
}

fn write(folder: &Path, files: &[(&str, Vec<u8>)]) {
    let hidden = folder.with_file_name("_writing");
    for (name, bytes) in files {
        let path = hidden.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let _ = fs::remove_dir_all(folder);
    fs::rename(hidden, folder).unwrap();
}

async fn serves(address: SocketAddr, dataset: &str, version: &str) {
    until(&format!("{dataset} serves {version}"), async || {
        get(address, &format!("/{dataset}/no-such-key")).await.is_some_and(|answer| answer.version == version)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s19_what_cannot_be_read_is_an_error_that_names_it_and_is_loaded_when_it_was_mended() {
    log::listen();
    let mut test_cluster = TestCluster::new();
    fs::remove_dir_all(test_cluster.source().join("names")).unwrap();
    let folder = |case: &Case| test_cluster.source().join(case.dataset);
    let cases: Vec<Case> = sequence_files().into_iter().chain(others()).collect();
    for case in &cases {
        fs::create_dir_all(folder(case)).unwrap();
        fs::write(folder(case).join("_dataset.toml"), case.settings).unwrap();
        write(&folder(case).join("1"), &case.good);
    }
    let (source, options) = (open(&test_cluster), test_cluster.options(1));
    test_cluster.start_silent(1, options, source).await;
    let address = test_cluster.nodes[&1].address();
    for case in &cases {
        serves(address, case.dataset, "1").await;
    }
    for case in &cases {
        write(&test_cluster.source().join(case.dataset).join("2"), &case.bad);
    }
    for Case { dataset, says, .. } in &cases {
        let error = test_cluster.is_an_error(1, dataset, "2").await;
        assert!(says.iter().all(|part| error.contains(part)), "{dataset}: {error}");
        serves(address, dataset, "1").await;
        let state = format!("partage_dataset_state{{dataset=\"{dataset}\",version=\"2\",state=\"error\"}}");
        until(&format!("the metric of {dataset}"), async || test_cluster.metric(1, &state).await == 1.0)
            .await;
        let states = format!("partage_dataset_versions{{dataset=\"{dataset}\",state=\"error\"}}");
        assert_eq!(test_cluster.metric(1, &states).await, 1.0);
        assert!(log::count(&["ERROR", &format!("dataset={dataset}"), says[0]]) > 0, "{dataset}: {error}");
    }
    for case in &cases {
        write(&test_cluster.source().join(case.dataset).join("2"), &case.good);
    }
    for case in &cases {
        serves(address, case.dataset, "2").await;
    }
    test_cluster.end().await;
}

fn open(test_cluster: &TestCluster) -> Source {
    Source::open(&test_cluster.source().display().to_string(), &Settings::new()).unwrap()
}

/// A node that looks at its source only when it is told to.
fn patient(test_cluster: &TestCluster) -> NodeOptions {
    NodeOptions { refresh: Duration::from_secs(3_600), ..test_cluster.options(1) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s19_a_version_that_vanishes_while_it_is_loaded_is_an_error_until_it_is_there_again() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    let options = NodeOptions { throttle: Throttle::new(20_000), ..patient(&test_cluster) };
    test_cluster.start_with(1, options).await;
    test_cluster.all_serve("v1").await;
    let names = test_cluster.source().join("names");
    let divided = |name: &str, more: u32| {
        let line = |key: u32| format!("key-{key}\t{name} {key}\n");
        let more: String = (0..more).map(|n| format!("more-{n}\tto make it long\n")).collect();
        let files = (0..8u32).map(|file| {
            let keys: String = (0..40).filter(|key| key % 8 == file).map(line).collect();
            (format!("part-{file}.tsv"), format!("{keys}{more}").into_bytes())
        });
        let files: Vec<(String, Vec<u8>)> = files.collect();
        let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(n, b)| (n.as_str(), b.clone())).collect();
        write(&names.join(name), &files);
    };
    divided("v2", 2_000);
    test_cluster.nodes[&1].refresh();
    until("some of v2 has been read", async || {
        let told = test_cluster.told(1, "names", "v2").await;
        told["loading"]["bytes"].as_u64().unwrap_or(0) > 0 && told["loading"]["partitions_in_all"] == 8
    })
    .await;
    assert_eq!(test_cluster.told(1, "names", "v2").await["state"], "BUILDING");
    let loading = "partage_dataset_to_load_bytes{dataset=\"names\",version=\"v2\"}";
    assert!(test_cluster.metric(1, loading).await > 8.0 * 30_000.0);
    let wanted = "partage_dataset_partitions_wanted{dataset=\"names\",version=\"v2\"}";
    assert_eq!(test_cluster.metric(1, wanted).await, 8.0);
    fs::rename(names.join("v2"), names.join("_v2")).unwrap();
    let error = test_cluster.is_an_error(1, "names", "v2").await;
    assert!(error.contains("names/v2/part-") && error.contains("404"), "{error}");
    assert_eq!(test_cluster.get(1, "/names/key-3").await.body, "v1 3");
    let loads = async |event: &str| {
        test_cluster
            .metric(1, &format!("partage_dataset_loads_total{{dataset=\"names\",event=\"{event}\"}}"))
            .await
    };
    assert_eq!((loads("begun").await, loads("failed").await, loads("done").await), (2.0, 1.0, 1.0));
    assert!(test_cluster.metric(1, "partage_dataset_read_bytes_total{dataset=\"names\"}").await > 0.0);
    // Smaller, or it would take its time; and divided as before, or it would have to be another version.
    fs::remove_dir_all(names.join("_v2")).unwrap();
    divided("v2", 1);
    test_cluster.nodes[&1].refresh();
    test_cluster.all_serve("v2").await;
    let upgrades = "partage_dataset_upgrades_total{dataset=\"names\"}";
    assert_eq!(test_cluster.metric(1, upgrades).await, 2.0);
    assert_eq!(test_cluster.end().await, [["v1", "v2"]]);
}

/// A server that answers every request alike.
struct Wrong {
    port: u16,
    answer: Arc<Mutex<Option<&'static str>>>,
}

impl Wrong {
    fn start() -> Wrong {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::new(Mutex::new(None));
        let shared = answer.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, shared) = (stream.unwrap(), shared.clone());
                std::thread::spawn(move || {
                    let mut request = [0; 4_096];
                    while stream.read(&mut request).is_ok_and(|count| count > 0) {
                        let answer: Option<&str> = *shared.lock().unwrap();
                        // Nothing at all, until the client goes.
                        let Some(status) = answer else { continue };
                        let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                        if stream.write_all(head.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Wrong { port, answer }
    }

    fn source(port: u16) -> Source {
        let policy = SourceRetryPolicy {
            connect_time: Duration::from_millis(500),
            answer_time: Duration::from_millis(500),
            retries: 1,
            retry_time: Duration::from_secs(2),
        };
        let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")];
        let keys = keys.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let url = format!("s3://bucket?endpoint=http://127.0.0.1:{port}&region=eu");
        Source::open_with_policy(&url, &keys, &policy).unwrap()
    }
}

#[cfg(feature = "s3")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s19_a_source_that_refuses_fails_is_slow_or_is_not_there_is_told_while_the_old_version_serves() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    test_cluster.stop(1).await;
    let wrong = Wrong::start();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (port, answer, says) in [
        (wrong.port, Some("403 Forbidden"), "403"),
        (wrong.port, Some("500 Internal Server Error"), "the source fails"),
        (wrong.port, None, "too slow"),
        (nobody, None, "not reachable"),
    ] {
        *wrong.answer.lock().unwrap() = answer;
        let options = test_cluster.options(1);
        test_cluster.start_from(1, options, Wrong::source(port)).await;
        let me = test_cluster.nodes[&1].address().to_string();
        let mut error = serde_json::Value::Null;
        until(&format!("it is told twice that {says}"), async || {
            error = test_cluster.json(1, "/").await["nodes"][&me]["source_error"].take();
            error["times"].as_u64().unwrap_or(0) >= 2
        })
        .await;
        assert!(error["error"].as_str().unwrap().contains(says), "{error}");
        assert!(error["since"].as_str().unwrap().ends_with('Z'), "{error}");
        test_cluster.all_serve("v1").await;
        let of_dataset = &test_cluster.json(1, "/names").await["source_errors"][&me];
        assert_eq!(of_dataset["error"], error["error"], "each dataset suffers from it");
        assert!(test_cluster.metric(1, "partage_dataset_source_errors_total{dataset=\"\"}").await >= 2.0);
        assert_eq!(test_cluster.metric(1, "partage_dataset_source_failing{dataset=\"names\"}").await, 1.0);
        assert!(test_cluster.metric(1, "partage_dataset_refreshes_total").await >= 2.0);
        assert_eq!(test_cluster.stop(1).await, ["v1"]);
    }
    test_cluster.start(1).await;
    test_cluster.write("v2");
    test_cluster.all_serve("v2").await;
    assert_eq!(test_cluster.json(1, "/names").await["source_errors"], serde_json::json!({}));
    assert_eq!(test_cluster.metric(1, "partage_dataset_source_failing{dataset=\"names\"}").await, 0.0);
    test_cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_are_wrong_are_told_of_their_dataset_and_what_is_right_again_counts_at_once() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    let file = test_cluster.source().join("names/_dataset.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, "formt = 'tsv'\n").unwrap();
    let me = test_cluster.nodes[&1].address().to_string();
    until("the mistake is told", async || {
        let told = test_cluster.json(1, "/names").await["source_errors"][&me].take();
        told["error"].as_str().is_some_and(|error| error.contains("did you mean \"format\""))
    })
    .await;
    assert!(
        test_cluster.json(1, "/").await["nodes"][&me].get("source_error").is_none(),
        "the rest can be read"
    );
    fs::write(&file, format!("{good}content_type = 'text/x-names'\n")).unwrap();
    until("the content type of the next refresh counts", async || {
        let head = test_cluster.head(1, "/names/key-1").await;
        head.contains("content-type: text/x-names\r\n")
    })
    .await;
    // Both clerks of the server say so.
    let head = test_cluster.head(1, "/names/key-1?x=%31").await;
    assert!(head.contains("content-type: text/x-names\r\n"), "{head}");
    assert_eq!(test_cluster.json(1, "/names").await["content_type"], "text/x-names");
    test_cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_coordination_service_away_is_told_once_and_shown_all_the_while() {
    log::listen();
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    let me = test_cluster.nodes[&1].address().to_string();
    let standing = async |test_cluster: &TestCluster| test_cluster.json(1, "/").await["nodes"][&me].take();
    until("it is connected", async || standing(&test_cluster).await["coordination"] == "connected").await;
    assert_eq!(test_cluster.metric(1, "partage_dataset_coordination_connected").await, 1.0);
    until("its keys are published", async || {
        test_cluster.metric(1, "partage_dataset_presence_keys").await == 2.0
    })
    .await;
    test_cluster.service.is_away(true);
    until("it is away, and was asked again and again", async || {
        let told = standing(&test_cluster).await;
        told["coordination"] == "away" && told["coordination_error"]["times"].as_u64().unwrap_or(0) >= 6
    })
    .await;
    assert_eq!(test_cluster.metric(1, "partage_dataset_coordination_connected").await, 0.0);
    let said = log::count(&["the coordination service is away", &format!("node=\"{me}\"")]);
    assert_eq!(said, 1, "six times in vain, and one line");
    test_cluster.service.is_away(false);
    until("it is back", async || standing(&test_cluster).await["coordination"] == "connected").await;
    test_cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tricks_with_paths_and_links_never_leave_the_dataset() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    let outside = test_cluster.source().with_file_name("secret");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("part-0.tsv"), "key-1\tsecret\n").unwrap();
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    let address = test_cluster.nodes[&1].address();
    let long = format!("/names/{}", "k".repeat(60_000));
    for path in [
        "/names/%2E%2E",
        "/names/%2e%2e%2fsecret%2fpart-0.tsv",
        "/names/%2e%2e/%2e%2e/etc/passwd",
        "/names/%00",
        "/names/key-1%00",
        "/names//key-1",
        "/names//etc/passwd",
        "/names/%2fetc%2fpasswd",
        "/names/%252e%252e",
        "/names/_dataset.toml",
        &long,
    ] {
        let answer = get(address, path).await.unwrap();
        assert_eq!(
            (answer.status, answer.version.as_str()),
            (404, "v1"),
            "a key that is not there: {path:.40}"
        );
    }
    for path in ["/%2e%2e/key-1", "/nam%65s/key-1", "//names/key-1"] {
        let answer = get(address, path).await.unwrap();
        assert_eq!((answer.status, answer.version.as_str()), (404, ""), "no dataset: {path}");
    }
    for path in ["/../names/key-1", "/./names/key-1", "/names/..", "/names/../secret"] {
        assert_eq!(get(address, path).await.unwrap().status, 400, "two ways to understand it: {path}");
    }
    assert_eq!(get(address, "/names/%zz").await.unwrap().status, 400);
    assert_eq!(get(address, &format!("/names/{}", "k".repeat(70_000))).await.unwrap().status, 414);
    // In the source: links, a link's name, a folder's name.
    let names = test_cluster.source().join("names");
    let link = |to: &Path, from: PathBuf| std::os::unix::fs::symlink(to, from).unwrap();
    link(&outside, names.join("v2"));
    let error = test_cluster.is_an_error(1, "names", "v2").await;
    assert!(error.contains("a link that leads out of the source"), "{error}");
    fs::create_dir(names.join("_v3")).unwrap();
    link(&outside.join("part-0.tsv"), names.join("_v3/part-0.tsv"));
    fs::rename(names.join("_v3"), names.join("v3")).unwrap();
    let error = test_cluster.is_an_error(1, "names", "v3").await;
    assert!(error.contains("v3/part-0.tsv: a link that leads out of the source"), "{error}");
    fs::create_dir(names.join("_v4")).unwrap();
    fs::write(names.join("_v4/_SYMLINK"), "../../secret").unwrap();
    fs::rename(names.join("_v4"), names.join("v4")).unwrap();
    let error = test_cluster.is_an_error(1, "names", "v4").await;
    assert!(error.contains("_SYMLINK must hold the name of another version"), "{error}");
    test_cluster.all_serve("v1").await;
    assert_eq!(test_cluster.end().await, [["v1"]]);
}
