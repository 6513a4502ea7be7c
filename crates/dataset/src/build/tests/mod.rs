//! Versions of small files made into store files, and every way in which that can go wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use partage_engine::readonly::{BuildError, Reader, UNFINISHED};
use partage_service::dataset::{DatasetName, Partitioner, VersionName};
use tempfile::TempDir;

use super::*;
use crate::format::{Columns, Format};
use crate::source::{Files, Settings, Source, SourceErrorKind, Throttle};
use partage_wire::dataset::presence::PARTITIONS;

mod linked;
mod means;

type Readers = BTreeMap<u32, Arc<Reader>>;

/// A source with one version, and a folder to load it into.
struct Bench {
    folder: TempDir,
    options: Options,
    throttle: Throttle,
}

fn names() -> (DatasetName, VersionName) {
    (DatasetName::new("set").unwrap(), VersionName::new("1").unwrap())
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        for part in ["source/set/1", "local"] {
            fs::create_dir_all(folder.path().join(part)).unwrap();
        }
        let columns = Columns {
            key: vec!["1".to_owned()],
            values: vec!["2".to_owned()],
            header: false,
            ..Columns::default()
        };
        let format = format::Options { format: Some(Format::Tsv), columns, ..format::Options::default() };
        Bench { folder, options: Options { format, ..Options::default() }, throttle: Throttle::new(0) }
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.folder.path().join("source/set/1").join(name), bytes).unwrap();
    }

    /// Files of keys and values, one for each list.
    fn files(&self, files: &[Vec<(String, String)>]) {
        for (number, pairs) in files.iter().enumerate() {
            let lines: String = pairs.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
            self.file(&format!("part-{number:05}"), lines);
        }
    }

    fn local(&self) -> std::path::PathBuf {
        self.folder.path().join("local")
    }

    fn source(&self, folder: &str) -> Source {
        let path = self.folder.path().join(folder);
        Source::open(path.to_str().unwrap(), &Settings::new()).unwrap()
    }

    async fn load_from(&self, source: &Source) -> Result<Load, Error> {
        let (dataset, version) = names();
        let files = source.files(&dataset, &version).await?;
        let inspection = inspect(source, (&dataset, &version), &files, &self.options, &self.throttle).await?;
        Ok(Load {
            source: source.clone(),
            files,
            inspection,
            options: self.options.clone(),
            throttle: self.throttle.clone(),
            progress: Arc::default(),
            folder: self.local(),
            replaced: BTreeSet::new(),
        })
    }

    async fn load(&self) -> Result<Load, Error> {
        self.load_from(&self.source("source")).await
    }

    /// Loads these partitions, or all.
    async fn built(&self, wanted: Option<&[u32]>) -> Result<(Load, Readers), Error> {
        let load = self.load().await?;
        let all: Vec<u32> = (0..load.inspection.layout.partitions).collect();
        let readers = run(&load, wanted.unwrap_or(&all)).await?;
        Ok((load, readers))
    }

    async fn error(&self) -> Error {
        self.built(None).await.map(|(load, _)| load).unwrap_err()
    }

    fn unfinished(&self) -> usize {
        let names = fs::read_dir(self.local()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with(UNFINISHED)).count()
    }
}

async fn run(load: &Load, wanted: &[u32]) -> Result<Readers, Error> {
    let readers = Mutex::new(Readers::new());
    let ready = |partition, reader| {
        readers.lock().unwrap().insert(partition, reader);
    };
    load.run(&wanted.iter().copied().collect(), &ready).await?;
    Ok(readers.into_inner().unwrap())
}

fn pair(i: u32) -> (String, String) {
    (format!("key-{i}"), format!("value {i}"))
}

/// Keys dealt out to files by a hash.
fn dealt(partitioner: Partitioner, files: u32, count: u32) -> Vec<Vec<(String, String)>> {
    let mut dealt = vec![Vec::new(); files as usize];
    for pair in (0..count).map(pair) {
        dealt[partitioner.partition(pair.0.as_bytes(), files) as usize].push(pair);
    }
    dealt
}

/// Every key whose partition is here has its value there.
fn assert_all_found(load: &Load, readers: &Readers, count: u32) {
    let layout = load.inspection.layout;
    let mut keys = 0;
    for (key, value) in (0..count).map(pair) {
        if let Some(reader) = readers.get(&layout.partitioner.partition(key.as_bytes(), layout.partitions)) {
            keys += 1;
            assert_eq!(reader.get(key.as_bytes()).unwrap().as_deref(), Some(value.as_bytes()), "{key}");
        }
    }
    assert_eq!(readers.values().map(|reader| reader.len()).sum::<u64>(), keys);
}

#[tokio::test]
async fn s7_files_of_one_partition_are_read_only_where_it_is_wanted() {
    for partitioner in Partitioner::ALL {
        let bench = Bench::new();
        // Java's hashes agree on ASCII: one that begins anew at 1 does not.
        bench.files(&dealt(partitioner, 4, 2_000));
        let (load, readers) = bench.built(Some(&[1, 3])).await.unwrap();
        let expected =
            if partitioner == Partitioner::JavaString { Partitioner::JavaBytes } else { partitioner };
        assert_eq!(load.inspection.layout.partitioner, expected);
        assert_eq!(readers.len(), 2);
        assert_all_found(&load, &readers, 2_000);
        let seen = load.progress.snapshot();
        assert_eq!((seen.files, seen.files_in_all), (2, 2));
        assert_eq!(seen.bytes, seen.bytes_in_all);
        assert_eq!(seen.records, readers.values().map(|reader| reader.len()).sum::<u64>());
    }
}

#[tokio::test]
async fn s7_mixed_files_load_right() {
    let bench = Bench::new();
    let all: Vec<_> = (0..3_000).map(pair).collect();
    bench.files(&all.chunks(1_000).map(<[_]>::to_vec).collect::<Vec<_>>());
    let (load, readers) = bench.built(Some(&[2])).await.unwrap();
    assert!(!load.inspection.is_followed && load.inspection.whole.is_empty());
    assert_all_found(&load, &readers, 3_000);
    assert_eq!(load.progress.snapshot().files, 3);
}

#[tokio::test]
async fn s7_a_key_that_strayed_beyond_the_sample_is_found() {
    let bench = Bench::new();
    let mut files = dealt(Partitioner::JavaBytes, 4, 4_000);
    let strayed = files[0].pop().unwrap();
    let is_of_0 = Partitioner::JavaBytes.partition(strayed.0.as_bytes(), 4) == 0;
    assert!(is_of_0);
    files[3].push(strayed);
    bench.files(&files);
    let (load, readers) = bench.built(None).await.unwrap();
    assert_eq!(load.inspection.whole.len(), 4, "the sample did not show it");
    assert_all_found(&load, &readers, 4_000);

    // Nodes that make some partitions: who reads that file gives up, and makes its partition for nobody.
    let bench = Bench::new();
    bench.files(&files);
    let error = bench.built(Some(&[2, 3])).await.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("part-00003: record ") && error.contains(": not of the partition"), "{error}");
    assert!(error.contains("`sampled = false`"), "{error}");

    // Told not to trust samples, also a node that would not have read that file finds it.
    let mut bench = Bench::new();
    bench.options.is_sampled = false;
    bench.files(&files);
    let (load, readers) = bench.built(Some(&[0])).await.unwrap();
    assert_all_found(&load, &readers, 4_000);
}

#[tokio::test]
async fn s6_of_one_key_in_several_files_the_last_counts_whoever_is_quicker() {
    for _ in 0..10 {
        let mut bench = Bench::new();
        bench.options.at_once = 4;
        let file = |number: u32| (0..500).map(|i| (format!("key-{i}"), format!("{number}"))).collect();
        let mut files: Vec<Vec<(String, String)>> = (0..4).map(file).collect();
        files[2].push(("key-1".to_owned(), "not the last".to_owned()));
        files[3].push(("key-2".to_owned(), "the last".to_owned()));
        bench.files(&files);
        let (load, readers) = bench.built(None).await.unwrap();
        let get = |key: &str| {
            let layout = load.inspection.layout;
            let reader = &readers[&layout.partitioner.partition(key.as_bytes(), layout.partitions)];
            String::from_utf8(reader.get(key.as_bytes()).unwrap().unwrap().into_owned()).unwrap()
        };
        assert_eq!([get("key-0"), get("key-1"), get("key-2")], ["3", "3", "the last"]);
    }
}

/// A key in letters with this hash of Java's.
fn key_of(hash: u32) -> String {
    let (mut rest, mut key) = (hash, Vec::new());
    while rest > 126 {
        let last = 32 + (rest - 32) % 31;
        key.push(last as u8);
        rest = (rest - last) / 31;
    }
    key.push(rest as u8);
    key.reverse();
    String::from_utf8(key).unwrap()
}

#[tokio::test]
async fn s7_a_key_that_cascading_put_elsewhere_stays_there() {
    let bench = Bench::new();
    let files = 5;
    let near = key_of(0x7fff_ffff);
    assert_eq!(Partitioner::JavaBytes.hash(near.as_bytes()), 0x7fff_ffff);
    let elsewhere = Partitioner::JavaBytes.alternative(near.as_bytes(), files).unwrap();
    let mut dealt = dealt(Partitioner::JavaBytes, files, 2_000);
    dealt[elsewhere as usize].push((near.clone(), "near".to_owned()));
    bench.files(&dealt);
    let (load, readers) = bench.built(Some(&[elsewhere])).await.unwrap();
    assert_eq!(load.inspection.whole.len(), 5);
    assert_eq!(readers[&elsewhere].get(near.as_bytes()).unwrap().as_deref(), Some(&b"near"[..]));
}

#[tokio::test]
async fn more_than_fits_into_memory_is_loaded_all_the_same() {
    let mut bench = Bench::new();
    bench.options.memory_bytes = 1;
    let filler = "x".repeat(200);
    let pairs: Vec<_> = (0..20_000).map(|i| (format!("key-{i}"), format!("{i} {filler}"))).collect();
    bench.files(&pairs.chunks(10_000).map(<[_]>::to_vec).collect::<Vec<_>>());
    let (load, readers) = bench.built(None).await.unwrap();
    let layout = load.inspection.layout;
    for (key, value) in &pairs {
        let reader = &readers[&layout.partitioner.partition(key.as_bytes(), layout.partitions)];
        assert_eq!(reader.get(key.as_bytes()).unwrap().as_deref(), Some(value.as_bytes()));
    }
}

#[tokio::test]
async fn s19_what_is_finished_is_not_loaded_again() {
    let bench = Bench::new();
    bench.files(&dealt(Partitioner::JavaBytes, 4, 2_000));
    bench.built(Some(&[0, 1])).await.unwrap();
    // One does not open any more.
    let damaged = bench.local().join(file_name(1));
    let bytes = fs::read(&damaged).unwrap();
    fs::write(&damaged, &bytes[..bytes.len() - 1]).unwrap();
    let (load, readers) = bench.built(Some(&[0, 1, 2])).await.unwrap();
    assert_all_found(&load, &readers, 2_000);
    assert_eq!((readers.len(), load.progress.snapshot().files), (3, 2));
}

#[tokio::test]
async fn dropped_it_stops_and_leaves_nothing_half_done() {
    let mut bench = Bench::new();
    bench.files(&dealt(Partitioner::JavaBytes, 4, 2_000));
    let load = bench.load().await.unwrap();
    // It would take days.
    bench.throttle = Throttle::new(1);
    let slow = Load { throttle: bench.throttle.clone(), ..load };
    let wanted = BTreeSet::from([0, 1, 2, 3]);
    tokio::select! {
        done = slow.run(&wanted, &|_, _| {}) => panic!("{done:?}"),
        () = async { while slow.progress.snapshot().bytes == 0 { tokio::time::sleep(Duration::from_millis(1)).await } } => {}
    }
    assert_eq!(
        fs::read_dir(bench.local())
            .unwrap()
            .filter(|e| partition_of(&e.as_ref().unwrap().file_name().to_string_lossy()).is_some())
            .count(),
        0
    );
}

#[tokio::test]
async fn errors_name_the_file_the_place_and_the_reason() {
    let bench = Bench::new();
    bench.files(&dealt(Partitioner::JavaBytes, 2, 400));
    bench.file("part-00002", "a\tb\nc\n");
    let error = bench.error().await;
    assert!(
        error
            .to_string()
            .ends_with("set/1/part-00002: line 2: not a TSV file: 1 fields where the first row has 2"),
        "{error}"
    );

    bench.file("part-00002", format!("a\tb\n{}\tc\n", "k".repeat(70_000)));
    let error = bench.error().await.to_string();
    assert!(error.contains("part-00002: record 1: ") && error.contains("a key of 70000 bytes"), "{error}");

    bench.file("part-00002", b"SEQ\x06");
    let error = bench.error().await.to_string();
    assert!(error.contains("part-00002: offset 0: not a TSV file"), "{error}");

    bench.file("part-00002", "a\tb\n");
    let load = bench.load().await.unwrap();
    let error = load.run(&BTreeSet::from([3]), &|_, _| {}).await.unwrap_err();
    assert_eq!(error.to_string(), "partition 3 of a version that has 3, counted from 0");

    fs::remove_file(bench.folder.path().join("source/set/1/part-00001")).unwrap();
    let error = load.run(&BTreeSet::from([0, 1, 2]), &|_, _| {}).await.unwrap_err();
    assert!(
        matches!(&error, Error::Source(error) if matches!(error.kind, SourceErrorKind::NotThere)),
        "{error}"
    );
    assert_eq!(bench.unfinished(), 0);
}

#[tokio::test]
async fn a_version_of_several_formats_is_refused_by_name() {
    let mut bench = Bench::new();
    bench.options.format.format = None;
    bench.options.format.columns.key = vec!["k".to_owned()];
    bench.options.format.columns.header = true;
    bench.options.format.columns.values = Vec::new();
    bench.file("a.csv", "k\n1\n");
    bench.file("b.jsonl", "{\"k\":1}\n");
    let error = bench.error().await.to_string();
    assert!(error.contains("b.jsonl is jsonl, but ") && error.contains("a.csv is csv"), "{error}");
}

#[tokio::test]
async fn a_version_of_more_files_than_nodes_can_tell_of_is_refused() {
    let bench = Bench::new();
    bench.files(&dealt(Partitioner::JavaBytes, 1, 3));
    let (dataset, version) = names();
    let source = bench.source("source");
    let one = source.files(&dataset, &version).await.unwrap();
    let looked = async |count: u32| {
        let files = (0..count).map(|_| one.files[0].clone()).collect();
        let files = Files { files, ..one.clone() };
        inspect(&source, (&dataset, &version), &files, &bench.options, &bench.throttle).await
    };
    assert_eq!(looked(1).await.unwrap().layout.partitions, 1);
    let told = looked(PARTITIONS + 1).await.unwrap_err().to_string();
    assert!(told.contains("30001 files") && told.contains("fewer, larger"), "{told}");
}

#[test]
fn a_full_disk_is_named() {
    let io = || std::io::Error::from_raw_os_error(28);
    let built = BuildError::Io { path: "/data/x".into(), doing: "writing the file", source: io() };
    for error in [Error::of_build(built), Error::of_disk("/data/x", io())] {
        assert!(matches!(error, Error::DiskFull { .. }));
        assert!(error.to_string().starts_with("/data/x: the disk is full; make room"), "{error}");
    }
}

/// Built by `build_all` into `built/set/1`.
async fn prebuilt() -> Bench {
    let bench = Bench::new();
    bench.files(&dealt(Partitioner::HadoopBytes, 3, 1_000));
    let (dataset, version) = names();
    let out = bench.folder.path().join("built");
    let manifest =
        build_all(&bench.source("source"), (&dataset, &version), &out, &bench.options, &Arc::default())
            .await
            .unwrap();
    assert_eq!((manifest.partitions, manifest.files.len()), (3, 3));
    bench
}

fn built_file(bench: &Bench, name: &str) -> std::path::PathBuf {
    bench.folder.path().join("built/set/1").join(name)
}

async fn fetched(bench: &Bench) -> Result<(Load, Readers), Error> {
    let load = bench.load_from(&bench.source("built")).await?;
    let readers = run(&load, &[0, 1, 2]).await?;
    Ok((load, readers))
}

#[tokio::test]
async fn store_files_that_were_built_before_are_fetched_and_checked() {
    let bench = prebuilt().await;
    assert!(built_file(&bench, "_SUCCESS").exists());
    let (load, readers) = fetched(&bench).await.unwrap();
    assert_eq!(load.inspection.layout.partitioner, Partitioner::HadoopBytes);
    assert_all_found(&load, &readers, 1_000);
    assert_eq!(load.progress.snapshot().records, 1_000);

    let (dataset, version) = names();
    let out = bench.folder.path().join("built");
    let again =
        build_all(&bench.source("source"), (&dataset, &version), &out, &bench.options, &Arc::default())
            .await
            .unwrap_err();
    assert!(again.to_string().contains("there already"), "{again}");
}

#[tokio::test]
async fn z5_the_digest_is_of_names_and_lengths_and_of_the_contents_of_store_files() {
    let bench = |name: &str, text: &str| {
        let bench = Bench::new();
        bench.file(name, text);
        bench.file("part-1", "b\t2\n");
        bench
    };
    let digest = async |bench: &Bench, folder: &str| {
        bench.load_from(&bench.source(folder)).await.unwrap().inspection.layout.digest
    };
    let first = bench("part-0", "a\t1\n");
    let one = digest(&first, "source").await;
    assert_eq!(one, digest(&bench("part-0", "a\t1\n"), "source").await, "a copy of the source");
    assert_ne!(one, digest(&bench("part-0", "a\t10\n"), "source").await);
    assert_ne!(one, digest(&bench("part-2", "a\t1\n"), "source").await);
    let as_long = bench("part-0", "a\t7\n");
    assert_eq!(one, digest(&as_long, "source").await, "a listing tells nothing of contents");

    // Of store files the manifest tells the contents.
    for bench in [&first, &as_long] {
        let (named, out) = (names(), bench.folder.path().join("built"));
        let source = bench.source("source");
        build_all(&source, (&named.0, &named.1), &out, &bench.options, &Arc::default()).await.unwrap();
    }
    let bytes = |bench: &Bench| [0, 1].map(|n| fs::metadata(built_file(bench, &file_name(n))).unwrap().len());
    assert_eq!(bytes(&first), bytes(&as_long));
    assert_ne!(digest(&first, "built").await, digest(&as_long, "built").await);
}

#[tokio::test]
async fn store_files_other_than_their_manifest_are_refused() {
    async fn refused(change: impl Fn(&Bench)) -> String {
        let bench = prebuilt().await;
        change(&bench);
        let error = fetched(&bench).await.map(|_| ()).unwrap_err().to_string();
        assert_eq!(bench.unfinished(), 0);
        error
    }
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fs::write(path, bytes).unwrap();
    };
    let flipped = refused(|bench| flip(&built_file(bench, "00001.partage"))).await;
    assert!(flipped.contains("00001.partage: offset "), "{flipped}");
    let manifest = refused(|bench| flip(&built_file(bench, "_manifest.json"))).await;
    assert!(manifest.contains("_manifest.json: "), "{manifest}");
    let missing = refused(|bench| fs::remove_file(built_file(bench, "00001.partage")).unwrap()).await;
    assert!(missing.contains("of 3 partitions, but there are 2 files"), "{missing}");
    let bare = refused(|bench| fs::remove_file(built_file(bench, "_manifest.json")).unwrap()).await;
    assert!(bare.contains("not there, beside store files"), "{bare}");
    let other = refused(|bench| fs::write(built_file(bench, "part-9"), "x").unwrap()).await;
    assert!(other.contains("part-9 is no store file"), "{other}");
    let longer = refused(|bench| {
        let path = built_file(bench, "00002.partage");
        let bytes = fs::read(&path).unwrap();
        fs::write(path, [&bytes[..], b"x"].concat()).unwrap();
    })
    .await;
    assert!(longer.contains("00002.partage: "), "{longer}");
}

#[tokio::test]
async fn s19_a_flipped_bit_anywhere_in_a_store_file_of_others_is_found_and_its_place_named() {
    let bench = prebuilt().await;
    let path = built_file(&bench, "00001.partage");
    let whole = fs::read(&path).unwrap();
    // A step that is no multiple of anything in the format, and every bit of a byte in turn.
    for (round, at) in (0..whole.len()).step_by(61).enumerate() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (round % 8);
        fs::write(&path, bytes).unwrap();
        let error = fetched(&bench).await.map(|_| ()).unwrap_err().to_string();
        let told = error.split("00001.partage: offset ").nth(1).unwrap_or_else(|| panic!("{at}: {error}"));
        let offset: usize = told.split(':').next().unwrap().parse().unwrap();
        assert!(offset <= at, "the part with byte {at} begins at {offset}: {error}");
        assert!(!bench.local().join("00001.partage").exists() && bench.unfinished() == 0, "{at}");
    }
    fs::write(&path, &whole).unwrap();
    let (load, readers) = fetched(&bench).await.unwrap();
    assert_all_found(&load, &readers, 1_000);
}

#[tokio::test]
async fn a_damaged_file_is_made_anew_when_that_is_asked_for() {
    let bench = Bench::new();
    bench.files(&dealt(Partitioner::HadoopBytes, 3, 300));
    let (mut load, _) = bench.built(None).await.unwrap();
    let path = load.folder.join("00001.partage");
    let whole = fs::read(&path).unwrap();
    let mut bytes = whole.clone();
    bytes[40] ^= 1;
    fs::write(&path, &bytes).unwrap();
    run(&load, &[0, 1]).await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes, "what opens is taken as it is");
    load.replaced = [1].into();
    run(&load, &[0, 1]).await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), whole);
}

#[test]
fn loading_may_be_a_task_of_its_own() {
    fn is_send<T: Send>(_: &T) {}
    let of = |load: &'static Load, wanted: &'static BTreeSet<u32>| is_send(&load.run(wanted, &|_, _| {}));
    let _ = of;
}

#[test]
fn names_of_store_files_are_exact() {
    assert_eq!(file_name(7), "00007.partage");
    assert_eq!(partition_of("00007.partage"), Some(7));
    assert_eq!(partition_of(&file_name(123_456)), Some(123_456));
    for name in ["7.partage", "00007", "+0007.partage", "000007.partage", ".partage", "_00007.partage"] {
        assert_eq!(partition_of(name), None, "{name}");
    }
}
