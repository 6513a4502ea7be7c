//! A disk that is full, for real; and more data than there is memory for.

use super::shop::{Shop, dataset, eventually, partage};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A small file system of its own, where this user may have one.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf, kib: u32) -> Option<Small> {
        fs::create_dir_all(&at).unwrap();
        let size = format!("size={kib}k");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at).stderr(Stdio::null());
        let is_mounted = mount.status().is_ok_and(|status| status.success());
        is_mounted.then_some(Small(at))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Lines that no compression makes small.
fn lines(count: u32, value: &str) -> String {
    let line =
        |n: u32| format!("key-{n},{value}{}\n", format!("{:08x}", n.wrapping_mul(0x9e37_79b9)).repeat(12));
    format!("name,hex\nred,{value}\n{}", (0..count).map(line).collect::<String>())
}

fn files_below(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let all = entries.map(|entry| entry.unwrap().path());
    all.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path.display().to_string()] })
        .collect()
}

/// A node whose disk has room for a small version, and not for a large one beside it.
fn fills_up(shop: &Shop, data_dir: &Path, command: Command, make_room: impl FnOnce()) {
    shop.write("1", &[&lines(10, "one")]);
    assert_eq!(shop.add(&[]).code, 0);
    let node = shop.node_in(data_dir, command);
    assert_eq!(node.ask(&["status", "colours", "--wait"]).code, 0);
    shop.write("2", &[&lines(20_000, "two")]);
    eventually("version 2 is an error", || node.version("2")["state"] == "ERROR");
    let told = node.version("2");
    let error = told["error"].as_str().unwrap();
    assert!(error.contains("colours/2") && error.contains("the disk is full; make room"), "{error}");
    assert_eq!(node.ask(&["get", "colours", "red"]).out, "one", "the old version serves");
    let left = files_below(&data_dir.join("datasets/colours/2"));
    assert!(
        left.iter().all(|file| file.ends_with("_manifest.json")),
        "what is half written is gone: {left:?}"
    );
    make_room();
    eventually("the next refresh has loaded it", || node.ask(&["get", "colours", "red"]).out == "two");
}

#[test]
fn s19_a_full_disk_is_an_error_until_there_is_room() {
    let shop = Shop::new();
    let folder = shop.path("small");
    let Some(small) = Small::mount(folder.clone(), 1_024) else {
        eprintln!(
            "not run on a full file system: this user may not mount one; the limit on files stands for it"
        );
        return;
    };
    let make_room = || {
        let remount = Command::new("mount").args(["-o", "remount,size=64m"]).arg(&folder).status();
        assert!(remount.unwrap().success());
    };
    fills_up(&shop, &folder.join("node"), partage(), make_room);
    drop(small);
}

/// The disk has room for two versions, of which clients get one.
#[test]
fn s15_a_superseded_version_gives_way_when_the_disk_is_full() {
    let shop = Shop::new();
    let folder = shop.path("small");
    let Some(small) = Small::mount(folder.clone(), 1_024) else {
        eprintln!("not run: this user may not mount a file system");
        return;
    };
    let data_dir = folder.join("node");
    let stored = |version: &str| {
        let files = files_below(&data_dir.join("datasets/colours").join(version));
        files.iter().any(|file| file.ends_with(".partage"))
    };
    shop.write("1", &[&lines(3_200, "one")]);
    assert_eq!(shop.add(&[]).code, 0);
    let node = shop.node_in(&data_dir, partage());
    assert_eq!(node.ask(&["status", "colours", "--wait"]).code, 0);
    shop.write("2", &[&lines(3_200, "two")]);
    eventually("version 2 serves", || node.ask(&["get", "colours", "red"]).out == "two");
    assert!(
        stored("1") && stored("2"),
        "the version before is kept for a while: {:?}",
        files_below(&data_dir)
    );
    shop.write("3", &[&lines(3_200, "three")]);
    eventually("version 3 serves", || node.ask(&["get", "colours", "red"]).out == "three");
    assert!(!stored("1") && stored("3"), "{:?}", files_below(&data_dir));
    drop(small);
}

#[test]
fn s19_a_file_that_may_not_grow_is_as_a_full_disk() {
    let shop = Shop::new();
    // Files of 512 KiB at the most; the signal that comes with it is not to end the process.
    let mut command = Command::new("bash");
    let limited = "trap '' XFSZ; ulimit -f 512; exec \"$0\" \"$@\"";
    command.args(["-c", limited, env!("CARGO_BIN_EXE_partage")]);
    // Nobody can give a process more again: a version that needs less is the room.
    let make_room = || shop.write("3", &[&lines(10, "two")]);
    fills_up(&shop, &shop.path("node"), command, make_room);
}

/// Of a process: what it has of its own, not what it has mapped of files.
fn own_bytes(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024)
}

#[test]
fn more_than_the_memory_is_built_within_it() {
    let shop = Shop::new();
    let file = lines(150_000, "");
    shop.write("1", &[&file, &file, &file, &file]);
    let input = 4 * file.len() as u64;
    assert_eq!(shop.add(&[]).code, 0);
    let (at, out) = (shop.at(), shop.path("out"));
    let mut build = partage();
    build.args([
        "dataset",
        "build",
        "colours",
        "--memory-mib",
        "1",
        "--at-once",
        "1",
        "--source",
        &at,
        "--out",
    ]);
    let mut process = build.arg(&out).stdout(Stdio::null()).spawn().unwrap();
    let (mut peak, mut looks) = (0, 0);
    let status = loop {
        if let Some(bytes) = own_bytes(process.id()) {
            (peak, looks) = (peak.max(bytes), looks + 1);
        }
        if let Some(status) = process.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(status.success());
    let first = out.join("colours/1/00000.partage");
    let keys = dataset(&["inspect", first.to_str().unwrap(), "--json"]).json()["keys"].as_u64().unwrap();
    assert!(keys > 30_000, "a quarter of 150,001 keys: {keys}");
    // What a process has before it does anything, and what its allocator keeps at hand, is some twenty MiB; what all of the
    // input would need is over sixty beside that.
    assert!(looks > 50 && input > 60 << 20, "{looks} looks, {input} bytes");
    assert!(peak < 36 << 20, "{peak} bytes at the peak for {input} bytes of input");
}
