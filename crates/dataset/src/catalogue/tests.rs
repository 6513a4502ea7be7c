use super::*;
use partage_core::base::time::Millis;
use partage_engine::readonly::{Builder, Reader};
use partage_service::dataset::name::VersionName;
use partage_service::dataset::partition::Partitioner;
use std::sync::atomic::{AtomicBool, Ordering};

fn dataset(catalogue: &Catalogue, name: &str) -> Arc<Dataset> {
    catalogue.add(Dataset::new(DatasetName::new(name).unwrap(), Options::default()).unwrap())
}

fn version(name: &str, partitions: u32) -> Version {
    Version::new(VersionName::new(name).unwrap(), "", partitions, Partitioner::JavaBytes, 0).unwrap()
}

fn reader(folder: &std::path::Path, name: &str) -> Arc<Reader> {
    let path = folder.join(name);
    let mut builder = Builder::new(&path, partage_engine::readonly::Options::default()).unwrap();
    builder.add(b"key", name.as_bytes()).unwrap();
    builder.finish().unwrap();
    Arc::new(Reader::open(&path).unwrap())
}

#[test]
fn clients_get_what_was_upgraded_to_and_peers_what_they_name() {
    let catalogue = Catalogue::default();
    let names = dataset(&catalogue, "names");
    assert!(names.read().is_none() && names.read_named("1").is_none());
    names.prepare(version("1", 2)).unwrap();
    assert!(names.read().is_none(), "s13: prepared is for peers alone");
    assert_eq!(names.read_named("1").unwrap().name().as_str(), "1");
    names.upgrade("1").unwrap();
    names.prepare(version("2", 3)).unwrap();
    assert_eq!(names.read().unwrap().name().as_str(), "1");
    assert_eq!(names.read_named("2").unwrap().partitions(), 3);
    names.upgrade("2").unwrap();
    assert_eq!(names.read().unwrap().name().as_str(), "2");
    assert_eq!(names.versions().len(), 2, "s15: the old one stays for peers");
    assert!(names.upgrade("3").unwrap_err().to_string().contains("no version 3"));
    assert!(matches!(names.prepare(version("2", 3)), Err(NotTaken::Twice { .. })));
    names.retire("2").unwrap();
    assert!(names.read().is_none() && names.read_named("2").is_none() && names.retire("2").is_none());
}

#[test]
fn a_dataset_is_taken_once_and_gone_when_it_is_removed() {
    let catalogue = Catalogue::default();
    let first = dataset(&catalogue, "names");
    assert!(Arc::ptr_eq(&first, &dataset(&catalogue, "names")));
    assert_eq!(catalogue.datasets().len(), 1);
    assert!(catalogue.remove("names").is_some() && catalogue.remove("names").is_none());
    assert!(catalogue.dataset("names").is_none());
    let bad = Options { content_type: "text/plain\r\nx: y".into(), ..Options::default() };
    assert!(Dataset::new(DatasetName::new("a").unwrap(), bad).is_err());
    let none = Version::new(VersionName::new("1").unwrap(), "", 0, Partitioner::JavaBytes, 0);
    assert!(matches!(none, Err(NotTaken::NoPartitions { .. })));
}

#[test]
fn partitions_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let version = version("1", 2);
    assert!(version.hold(1, reader(folder.path(), "a")) && !version.hold(2, reader(folder.path(), "b")));
    assert!(version.found_at(0, Arc::from([Arc::from("there:1")])));
    let places = version.places();
    assert!(places[0].here.is_none() && places[1].here.is_some());
    assert_eq!(places[0].peers.iter().map(AsRef::as_ref).collect::<Vec<&str>>(), ["there:1"]);
    assert!(version.let_go(1));
    assert!(
        version.places()[1].here.is_none() && places[1].here.is_some(),
        "who looked before keeps what it saw"
    );
}

#[test]
fn d5_a_reading_keeps_its_version_through_upgrade_retirement_and_deletion() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::default();
    let names = dataset(&catalogue, "names");
    names.prepare(version("1", 1)).unwrap().hold(0, reader(folder.path(), "1"));
    names.upgrade("1").unwrap();
    let reading = names.read().unwrap();
    names.prepare(version("2", 1)).unwrap().hold(0, reader(folder.path(), "2"));
    names.upgrade("2").unwrap();
    let old = names.retire("1").unwrap();
    assert_eq!(old.in_flight(), 1);
    std::fs::remove_file(folder.path().join("1")).unwrap();
    drop(old);
    let places = reading.places();
    assert_eq!(places[0].here.as_ref().unwrap().get(b"key").unwrap().unwrap().as_ref(), b"1");
}

/// Readers on several threads while versions come, are switched to, and go.
#[test]
fn d5_and_monotonic_reads_while_versions_change() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::default();
    let names = dataset(&catalogue, "names");
    let add = |number: u32| {
        let name = format!("{number:06}");
        names.prepare(version(&name, 1)).unwrap().hold(0, reader(folder.path(), &name));
        names.upgrade(&name).unwrap();
    };
    add(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut last = String::new();
                while !over.load(Ordering::Relaxed) {
                    let reading = names.read().expect("one version always serves");
                    let name = reading.name().to_string();
                    assert!(name >= last, "s14: {name} after {last}");
                    let places = reading.places();
                    let value = places[0].here.as_ref().unwrap().get(b"key").unwrap().unwrap().into_owned();
                    assert_eq!(value, name.as_bytes());
                    assert!(reading.in_flight() > 0);
                    last = name;
                }
            });
        }
        for number in 1..60 {
            add(number);
            let old = names.retire(&format!("{:06}", number - 1)).unwrap();
            std::fs::remove_file(folder.path().join(old.name().as_str())).unwrap();
            while old.in_flight() > 0 {
                std::thread::yield_now();
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(names.serving().unwrap().in_flight(), 0);
}

#[test]
fn s15_a_version_goes_when_its_timer_has_run_out_and_nobody_reads() {
    let catalogue = Catalogue::default();
    let names = dataset(&catalogue, "names");
    names.prepare(version("1", 1)).unwrap().asked_at(Millis(50));
    assert_eq!(names.retire_unused("1", Millis(50)).unwrap().unwrap_err(), Millis(50));
    let reading = names.read_named("1").unwrap();
    assert!(names.retire_unused("1", Millis(51)).unwrap().is_err(), "one is in flight");
    drop(reading);
    assert!(names.retire_unused("1", Millis(51)).unwrap().is_ok());
    assert!(names.retire_unused("1", Millis(51)).is_none());
}

#[test]
fn a_version_tells_how_it_stands_and_when_it_was_asked() {
    let version = version("1", 1);
    assert_eq!(version.state(), State::Building);
    version.set_bytes_loaded(5, 10);
    version.set_partitions_to_load(1);
    version.set_state(State::Active);
    assert_eq!((version.progress().bytes, version.active_at().is_some()), (5, true));
    version.set_state(State::Error {
        reason: "part-0: byte 7".into(),
        tries: 1,
        next_try: None,
        is_superseded: false,
    });
    assert_eq!(version.state().kind(), partage_service::dataset::node::State::Error);
    assert_eq!(version.last_request().0, 0);
    version.asked_at(Millis(9));
    version.asked_at(Millis(7));
    assert_eq!(version.last_request().0, 9);
}
