//! How long a synced group takes, beside its floor: the same bytes in a file that was filled with zeros before, with the same
//! flags, and nothing else. Figures hold beside each other only: a virtual machine may notice the end of a write
//! later while its processors are idle.
//!
//! `cargo run --release -p partage-log --example log_rate -- DIR`: DIR is made, and its disk is what counts. Ten seconds.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example is a program: it has arguments, prints, and measures with the real clock"
)]

use partage_core::base::id::{Epoch, PlacementId, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::ReplicaKey;
use partage_journal::{Disk, DiskFile, RealDisk};
use partage_log::{BLOCK, Log, LogSettings, Mode, Record};
use partage_service::table::replication::{Entry, EntryKind, LogPosition, LogWrite};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 100;
const REPLICAS: u64 = 1_000;
const EACH: Duration = Duration::from_millis(1_200);
const FLOOR_BYTES: u64 = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args().nth(1).ok_or("name a directory")?;
    for try_direct in [true, false] {
        let dir = Path::new(&dir).join(if try_direct { "direct" } else { "synced" });
        measure(&dir, LogSettings { try_direct, ..LogSettings::default() })?;
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(())
}

fn measure(dir: &Path, settings: LogSettings) -> Result<(), Box<dyn Error>> {
    let (mut log, recovered) = Log::open(Arc::new(RealDisk), dir, settings)?;
    let mode = recovered.mode.ok_or("the disk is full")?;
    println!("{mode}, {REPLICAS} replicas, values of {VALUE_BYTES} bytes");
    let mut floor = floor_file(&dir.join("floor"), mode)?;
    let (mut ends, mut turn) = (vec![0; REPLICAS as usize], 0);
    let mut at = 0;
    for writes in [1, 16, 128] {
        // In turns, so that both meet the same disk: other processes use it too.
        let (mut took, mut floor_took) = (Took::default(), Took::default());
        let (before, start) = (log.written_bytes(), Instant::now());
        while start.elapsed() < EACH {
            let group = (0..writes).map(|_| next(&mut ends, &mut turn)).collect::<Result<Vec<_>, _>>()?;
            let before = log.written_bytes();
            took.time(|| log.write(&group))?;
            let bytes = Aligned::new((log.written_bytes() - before) as usize);
            floor_took.time(|| floor.write_at(at, bytes.bytes()).and_then(|()| floor.sync()))?;
            at = if at + 2 * bytes.len as u64 > FLOOR_BYTES { 0 } else { at + bytes.len as u64 };
        }
        let bytes = (log.written_bytes() - before) / took.all.len() as u64;
        took.print(&format!("  log,   {writes:3} writes"), writes, bytes);
        floor_took.print(&format!("  floor, {writes:3} writes"), writes, bytes);
    }
    drop(log);
    let start = Instant::now();
    let (_, recovered) = Log::open(Arc::new(RealDisk), dir, settings)?;
    let entries: usize = recovered.replicas.values().map(|stored| stored.entries.len()).sum();
    let segments = std::fs::read_dir(dir)?.count();
    println!(
        "  opened with {entries} entries, {segments} files, in {:.0} ms",
        start.elapsed().as_secs_f64() * 1e3
    );
    Ok(())
}

fn next(ends: &mut [u64], turn: &mut u64) -> Result<(ReplicaKey, Record), Box<dyn Error>> {
    *turn = (*turn + 7) % REPLICAS;
    let end = &mut ends[*turn as usize];
    *end += 1;
    let position = LogPosition { epoch: Epoch(1), index: *end };
    let kind = EntryKind::Write(vec![7; VALUE_BYTES].into());
    let keyspace = KeyspaceName::new("orders")?;
    let key = ReplicaKey { keyspace, shard: ShardId(*turn), placement: PlacementId(*turn + 5_000) };
    Ok((key, LogWrite::Append(vec![Entry { position, kind }]).into()))
}

/// A file of zeros, opened as the log opens its segments.
fn floor_file(path: &Path, mode: Mode) -> Result<Box<dyn DiskFile>, Box<dyn Error>> {
    std::fs::write(path, vec![0; FLOOR_BYTES as usize])?;
    std::fs::File::open(path)?.sync_all()?;
    Ok(match mode {
        Mode::Direct => RealDisk.open_direct(path)?.ok_or("no direct writes")?,
        Mode::Synced => RealDisk.open(path)?,
    })
}

/// Bytes that begin at a block in memory.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let len = len.next_multiple_of(BLOCK);
        let bytes = vec![0x5a; len + BLOCK];
        let start = bytes.as_ptr().addr().wrapping_neg() % BLOCK;
        Aligned { bytes, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

#[derive(Default)]
struct Took {
    all: Vec<Duration>,
    cpu: Duration,
}

impl Took {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (start, cpu) = (Instant::now(), cpu());
        let done = work();
        self.all.push(start.elapsed());
        self.cpu += self::cpu() - cpu;
        done
    }

    fn print(mut self, what: &str, writes: usize, bytes: u64) {
        self.all.sort_unstable();
        let ms = |share: f64| self.all[((self.all.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        let each = self.all.iter().sum::<Duration>().as_secs_f64() * 1e6 / (self.all.len() * writes) as f64;
        let cpu = self.cpu.as_secs_f64() * 1e6 / (self.all.len() * writes) as f64;
        println!(
            "{what}: p50 {:.2} ms, p99 {:.2} ms, max {:.0} ms a group of {bytes} bytes; {each:.1} µs a write, {cpu:.2} µs of it CPU",
            ms(0.5),
            ms(0.99),
            ms(1.0)
        );
    }
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
