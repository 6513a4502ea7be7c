//! Store files on the disk of a node that are not as they were written, and prebuilt ones that did not arrive so.

use super::log;
use super::test_cluster::{FILES, KEYS, TestCluster, dataset, get, until, version};
use partage_dataset::build::{Options, build_all};
use partage_dataset::settings::DatasetSettings;
use partage_dataset::source::{Source, Throttle};
use partage_engine::readonly::Reader;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

fn flip(path: &PathBuf, at: usize, bit: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1 << bit;
    fs::write(path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s19_a_flipped_bit_on_the_disk_is_found_after_a_start_and_the_file_is_loaded_again() {
    log::listen();
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    let files: Vec<PathBuf> = (0..FILES)
        .map(|partition| test_cluster.data_dir(1).join(format!("datasets/names/v1/{partition:05}.partage")))
        .collect();
    let whole: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let mut found = 0;
    for round in 0..8 {
        test_cluster.stop(1).await;
        // In each round another place of every file: header, entries, directory, index, footer.
        for (file, bytes) in files.iter().zip(&whole) {
            flip(file, bytes.len() * round / 8 + round, round);
        }
        // No reader of the test cluster: alone, a node has nobody to ask for what is damaged, until it is loaded again.
        let (options, source) = (test_cluster.options(1), open(&test_cluster));
        test_cluster.start_silent(1, options, source).await;
        until("every file is whole again, and none is said to be damaged", async || {
            is_right_or_refused(&test_cluster).await;
            let is_whole = |file: &PathBuf| Reader::open(file).is_ok_and(|reader| reader.verify().is_ok());
            let told = test_cluster.told(1, "names", "v1").await;
            files.iter().all(is_whole) && told["state"] == "ACTIVE" && told.get("damaged").is_none()
        })
        .await;
        test_cluster.all_serve("v1").await;
        found += test_cluster.metric(1, "partage_dataset_damages_total{dataset=\"names\"}").await as u32;
    }
    assert!(found >= FILES, "most places are found only by reading the whole file: {found}");
    assert!(
        log::count(&["damaged; it is loaded once more", "partition=", ".partage: offset "]) >= found as usize
    );
    test_cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s19_the_reading_of_the_store_is_shown_and_ends_with_the_node() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    test_cluster.stop(1).await;
    // By itself it would take many minutes.
    let (mut options, source) = (test_cluster.options(1), open(&test_cluster));
    options.throttle = Throttle::new(1);
    test_cluster.start_silent(1, options, source).await;
    let me = test_cluster.nodes[&1].address().to_string();
    until("the node says how far it is", async || {
        let check = test_cluster.json(1, "/").await["nodes"][&me]["store_check"].take();
        check["bytes"].as_u64().is_some_and(|bytes| bytes < check["bytes_in_all"].as_u64().unwrap())
    })
    .await;
    let catalogue = test_cluster.nodes[&1].catalogue().clone();
    assert!(catalogue.store_check().is_some());
    test_cluster.stop(1).await;
    until("nothing is read any more", async || catalogue.store_check().is_none()).await;
}

fn open(test_cluster: &TestCluster) -> Source {
    Source::open(&test_cluster.source().display().to_string(), &BTreeMap::new()).unwrap()
}

/// A wrong answer is never given, whatever the disk has.
async fn is_right_or_refused(test_cluster: &TestCluster) {
    for key in 0..KEYS {
        let answer = test_cluster.get(1, &format!("/names/key-{key}")).await;
        if answer.status == 200 {
            assert_eq!(answer.body, format!("v1 {key}"));
        } else {
            assert!(
                answer.status >= 500 || answer.version.is_empty(),
                "not there, but only lost: {answer:?}"
            );
        }
    }
}

/// v2 of the test cluster's dataset as store files, in its source under the name of another version.
async fn built(test_cluster: &TestCluster, name: &str) -> PathBuf {
    let names = test_cluster.source().join("names");
    let (source, built) = (names.join("_source/names/x"), names.join("_built"));
    fs::create_dir_all(&source).unwrap();
    for file in 0..FILES {
        let keys = (0..KEYS).filter(|key| key % FILES == file);
        let lines: String = keys.map(|key| format!("key-{key}\t{name} {key}\n")).collect();
        fs::write(source.join(format!("part-{file:05}.tsv")), lines).unwrap();
    }
    let _ = fs::remove_dir_all(&built);
    let settings = fs::read(names.join("_dataset.toml")).unwrap();
    let options = Options::from(&DatasetSettings::parse("the settings", &settings).unwrap());
    let source = Source::open(names.join("_source").to_str().unwrap(), &BTreeMap::new()).unwrap();
    let (dataset, x) = (dataset(), version("x"));
    build_all(&source, (&dataset, &x), &built, &options, &Arc::default()).await.unwrap();
    built.join("names/x")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s19_reads_are_answered_while_a_version_is_loaded() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    test_cluster.stop(1).await;
    // It has v1 in its local store. A piece of v2 comes, and for days none after it.
    let mut options = test_cluster.options(1);
    options.throttle = Throttle::new(1);
    test_cluster.start_with(1, options).await;
    let folder = built(&test_cluster, "v2").await;
    fs::rename(folder, test_cluster.source().join("names/v2")).unwrap();
    until("v2 is being loaded", async || test_cluster.told(1, "names", "v2").await["state"] == "BUILDING")
        .await;
    for key in (0..KEYS).cycle().take(200) {
        assert_eq!(test_cluster.get(1, &format!("/names/key-{key}")).await.body, format!("v1 {key}"));
    }
    assert_eq!(test_cluster.told(1, "names", "v2").await["state"], "BUILDING");
    assert_eq!(test_cluster.end().await, [["v1"]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s19_a_flipped_bit_in_a_prebuilt_file_is_an_error_with_file_and_offset() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    let names = test_cluster.source().join("names");
    for round in 0..6 {
        let (file, name) = (format!("{:05}.partage", round % FILES), format!("v2-{round}"));
        let folder = built(&test_cluster, &name).await;
        let path = folder.join(&file);
        let length = fs::read(&path).unwrap().len();
        flip(&path, length * round as usize / 6 + 3, round as usize);
        fs::rename(folder, names.join(&name)).unwrap();
        let error = test_cluster.is_an_error(1, "names", &name).await;
        assert!(error.contains(&format!("{name}/{file}: offset ")), "{error}");
        assert_eq!(test_cluster.get(1, "/names/key-7").await.body, "v1 7");
        assert!(!test_cluster.data_dir(1).join("datasets/names").join(&name).join(&file).exists());
    }
    let folder = built(&test_cluster, "v3").await;
    fs::rename(folder, names.join("v3")).unwrap();
    test_cluster.all_serve("v3").await;
    assert_eq!(test_cluster.end().await, [["v1", "v3"]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_damaged_is_read_on_where_it_is_sound_until_the_source_can_give_it_anew() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    test_cluster.stop(1).await;
    let file = test_cluster.data_dir(1).join("datasets/names/v1/00002.partage");
    // Within the first entry: it ends before byte 40, and the others lie behind it.
    flip(&file, 24, 3);
    let away = test_cluster.source().with_file_name("away");
    fs::rename(test_cluster.source(), &away).unwrap();
    fs::create_dir_all(test_cluster.source()).unwrap();
    let options = test_cluster.options(1);
    let source = open(&test_cluster);
    test_cluster.start_silent(1, options, source).await;
    until("the damage is told", async || {
        let told = test_cluster.told(1, "names", "v1").await;
        told["damaged"]["2"].as_str().is_some_and(|why| why.contains("00002.partage: offset 16"))
    })
    .await;
    assert_eq!(
        test_cluster.metric(1, "partage_dataset_damaged{dataset=\"names\",version=\"v1\"}").await,
        1.0
    );
    let address = test_cluster.nodes[&1].address();
    let mut lost = 0;
    for key in 0..KEYS {
        match get(address, &format!("/names/key-{key}")).await.unwrap() {
            answer if answer.status == 200 => assert_eq!(answer.body, format!("v1 {key}")),
            answer => {
                assert_eq!(answer.status, 502, "{answer:?}");
                lost += 1;
            }
        }
    }
    assert_eq!(lost, 1, "one entry is damaged");
    fs::remove_dir(test_cluster.source()).unwrap();
    fs::rename(&away, test_cluster.source()).unwrap();
    test_cluster.all_serve("v1").await;
    assert!(Reader::open(&file).unwrap().verify().is_ok());
    test_cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_file_that_is_cut_off_while_it_is_served_costs_its_partition_and_is_loaded_again() {
    log::listen();
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    test_cluster.stop(1).await;
    // No reader of the test cluster: alone, a node has nobody to ask for what is lost.
    let (options, source) = (test_cluster.options(1), open(&test_cluster));
    test_cluster.start_silent(1, options, source).await;
    test_cluster.all_serve("v1").await;
    let address = test_cluster.nodes[&1].address();
    let file = test_cluster.data_dir(1).join("datasets/names/v1/00002.partage");
    let reader = test_cluster.nodes[&1].catalogue().dataset("names").unwrap().version("v1").unwrap();
    let partition = |key: u32| {
        let partitioner = reader.partitioner();
        partitioner.partition(format!("key-{key}").as_bytes(), FILES)
    };
    // There is no source to load it from at first.
    let away = test_cluster.source().with_file_name("away");
    fs::rename(test_cluster.source(), &away).unwrap();
    fs::File::options().write(true).open(&file).unwrap().set_len(0).unwrap();
    let mut lost = 0;
    for key in 0..KEYS {
        let answer = get(address, &format!("/names/key-{key}")).await.unwrap();
        match partition(key) {
            2 => {
                assert_eq!(answer.status, 502, "{answer:?}");
                lost += 1;
            }
            _ => assert_eq!((answer.status, answer.body), (200, format!("v1 {key}"))),
        }
    }
    assert!(lost > 0, "some keys are in that partition");
    let told = test_cluster.told(1, "names", "v1").await;
    let why = told["damaged"]["2"].as_str().unwrap();
    assert!(why.contains("00002.partage") && why.contains("cannot be read any more"), "{why}");
    fs::rename(&away, test_cluster.source()).unwrap();
    test_cluster.all_serve("v1").await;
    until("it is no longer damaged", async || {
        test_cluster.told(1, "names", "v1").await.get("damaged").is_none()
    })
    .await;
    assert!(Reader::open(&file).unwrap().verify().is_ok());
    assert!(log::count(&["damaged; it is loaded once more", "00002.partage: offset 0"]) > 0);
    test_cluster.end().await;
}
