//! What must stay in memory for each key, and a store that is three times as large as all the memory there is.

use crate::crowd::{Asker, run};
use crate::data::{Data, folder_bytes, version_name};
use crate::node::{self, Told};
use crate::question::Get;
use crate::servers;
use crate::{Done, Run};
use bench_gauge::{Running, free, memory_bytes_of, now, say};
use partage_engine::readonly::{Builder, Layout, Options, Reader};
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

const CONNECTIONS: usize = 32;

/// The store is so many times as large as the memory.
const TIMES: u64 = 3;

/// Bytes of the index for each key, and a load and reads with too little memory.
pub fn bench(told: &Run) -> Done {
    for layout in [Layout::Hashed, Layout::Ordered] {
        let path = told.folder("index")?.join(format!("{layout:?}.partage"));
        let keys = told.data.len().min(1_000_000);
        say(&index(&path, &told.data, keys, layout)?);
    }
    // Store files are as long as the files that they are made of, but for two parts in a hundred. The group is there as
    // long as the node in it, which is stopped first.
    let bytes = told.write_version(1)?;
    let limit = told.number("--limit-mib", (bytes / TIMES / 100 * 97) >> 20) << 20;
    let group = Group::new(limit)?;
    let (folder, at) = (told.folder("limited")?, free()?);
    let memory_mib = Some(((limit / 4) >> 20).max(8) as usize);
    let told_node = Told { memory_mib, group: Some(group.folder.join("cgroup.procs")), ..Told::default() };
    let mut running = Running::spawn(&mut node::command(&told.source()?, &folder, at, &told_node)?, at)?;
    let began = now();
    running.listens()?;
    servers::serves(&mut running, &told.data, 1)?;
    let store = folder_bytes(&folder.join("datasets/bench").join(version_name(1)))?;
    say(&format!(
        "limit {} MiB: loaded {bytes} bytes in {:.1} s, {:.1} core-seconds; the store is {store} bytes, {:.2} times the limit",
        limit >> 20,
        (now() - began).as_secs_f64(),
        running.core_seconds_ever(),
        store as f64 / limit as f64
    ));
    say(&group.line()?);
    let question = Get(&told.data);
    let asker = Asker { question: &question, servers: vec![at], depth: 1, asks_again: false };
    let time = Duration::from_secs(told.number("--seconds", 10));
    let (began, before) = (now(), running.core_seconds_ever());
    let seen = run(vec![asker; CONNECTIONS], began, &|| now() - began > time)?;
    let (used, seconds) = (running.core_seconds_ever() - before, (now() - began).as_secs_f64());
    say(&format!(
        "limit {} MiB: {:.0} requests a second, {:.0} a core-second, failed {}, {}",
        limit >> 20,
        seen.answers.len() as f64 / seconds,
        seen.answers.len() as f64 / used,
        seen.failed.len(),
        seen.of(|_| true).line()
    ));
    let own = memory_bytes_of(running.pid(), "RssAnon");
    say(&format!(
        "{}; memory of its own, not of files: {} MiB, {:.2} bytes a key",
        group.line()?,
        own >> 20,
        own as f64 / told.data.len() as f64
    ));
    Ok(())
}

fn index(
    path: &Path,
    data: &Data,
    keys: u64,
    layout: Layout,
) -> std::result::Result<String, Box<dyn std::error::Error>> {
    let mut builder = Builder::new(path, Options { layout, ..Options::default() })?;
    let mut left = keys;
    data.each(1, &mut |key, value| {
        if left == 0 {
            return Ok(());
        }
        left -= 1;
        builder.add(key, value).map_err(Error::other)
    })?;
    builder.finish()?;
    let description = Reader::open(path)?.describe();
    let each = description.index_bytes as f64 / description.keys as f64;
    Ok(format!("index of a store file, {layout:?}: {each:.3} bytes a key of {} keys", description.keys))
}

/// A group of processes with so much memory, files that they read included, and no more.
struct Group {
    folder: PathBuf,
    is_v2: bool,
}

impl Group {
    fn new(limit: u64) -> Result<Group> {
        let lacks = |what: String| {
            Error::other(format!(
                "no limit of memory can be set here: {what}; run it as root, with the cgroup controller memory"
            ))
        };
        let root = Path::new("/sys/fs/cgroup");
        let is_v2 = root.join("cgroup.controllers").exists();
        let parent = if is_v2 { root.to_owned() } else { root.join("memory") };
        if is_v2 {
            let file = root.join("cgroup.subtree_control");
            std::fs::write(&file, "+memory")
                .map_err(|error| lacks(format!("{}: {error}", file.display())))?;
        }
        let folder = parent.join(format!("bench-dataset-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|error| lacks(format!("{}: {error}", folder.display())))?;
        let group = Group { folder, is_v2 };
        let file = group.folder.join(if is_v2 { "memory.max" } else { "memory.limit_in_bytes" });
        std::fs::write(&file, limit.to_string())
            .map_err(|error| lacks(format!("{}: {error}", file.display())))?;
        Ok(group)
    }

    /// The most memory that the group has used, and how often the kernel killed a process of it for that.
    fn line(&self) -> Result<String> {
        let (peak, events) = match self.is_v2 {
            true => ("memory.peak", "memory.events"),
            false => ("memory.max_usage_in_bytes", "memory.oom_control"),
        };
        let peak = std::fs::read_to_string(self.folder.join(peak))?;
        let peak = peak.trim().parse::<u64>().map_err(Error::other)?;
        let events = std::fs::read_to_string(self.folder.join(events))?;
        let killed = events.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap_or("?");
        Ok(format!(
            "memory of the process and of files that it has looked at: {} MiB at most, killed for it: {killed}",
            peak >> 20
        ))
    }
}

/// No process is in the group any more: each has ended before.
impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.folder) {
            say(&format!("{} is left over: {error}", self.folder.display()));
        }
    }
}
