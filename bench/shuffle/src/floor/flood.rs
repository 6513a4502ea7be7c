//! The floor of a flood: a client that writes as much in a second as one was seen to, and beside it one that writes little, and
//! waits each time until that is on the disks of two nodes.

use super::NODES;
use super::ends::{Told, each};
use super::wire::{FRAME_BYTES, FRAME_RECORDS, RECORD_BYTES, Way};
use crate::client_process::{ClientProcess, ready};
use crate::{Done, Got, Run, SEED};
use bench_gauge::{Durations, Running, free, myself, now, rest, say};
use bench_shuffle::generate::{Generator, Input, Shape};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes that the flood has ready, and writes again and again.
const READY_BYTES: u64 = 48 << 20;

/// A flood, and what is written beside it.
pub struct Flood {
    /// What it writes, in bytes a second.
    pub bytes_s: u64,
    /// How long it flows before anything is counted.
    pub flows: Duration,
    /// Small writes beside it, each of so many records, and the time between two of them.
    pub trickles: u64,
    pub records: u64,
    pub every: Duration,
}

/// How long small writes take alone, and beside the flood.
pub fn bench(run: &Run, way: Way, flood: &Flood) -> Got<(Durations, Durations)> {
    let folder = run.of.folder(&format!("flood-floor-{}", way.name()))?;
    let nodes = Nodes::start(way, folder)?;
    nodes.trickled(flood)?;
    let alone = nodes.trickled(flood)?;
    let (mut flooding, _) = nodes.client("floor-flood", [flood.bytes_s, 0])?;
    flooding.go()?;
    rest(u64::try_from(flood.flows.as_millis())?);
    let beside = nodes.trickled(flood)?;
    // An error if it has ended meanwhile.
    flooding.line_within(Duration::from_millis(10))?;
    Ok((alone, beside))
}

struct Nodes {
    way: Way,
    folder: PathBuf,
    addresses: Vec<String>,
    _running: Vec<Running>,
}

impl Nodes {
    fn start(way: Way, folder: PathBuf) -> Got<Nodes> {
        let free: Vec<_> = (0..NODES).map(|_| free()).collect::<std::io::Result<_>>()?;
        let addresses: Vec<String> = free.iter().map(ToString::to_string).collect();
        let mut running = Vec::new();
        for (number, at) in free.into_iter().enumerate() {
            let mut command = myself()?;
            let numbers = [number as u64, super::RANGES, READY_BYTES / RECORD_BYTES as u64];
            command.arg("floor-node").args(numbers.map(|number| number.to_string()));
            command.arg(way.name()).arg(&folder).args(&addresses);
            running.push(Running::start(&mut command, at)?);
        }
        Ok(Nodes { way, folder, addresses, _running: running })
    }

    fn client(&self, role: &str, numbers: [u64; 2]) -> std::io::Result<(ClientProcess, String)> {
        let mut command = myself()?;
        command.arg(role).args(numbers.map(|number| number.to_string()));
        ClientProcess::start(command.arg(self.way.name()).arg(&self.folder).args(&self.addresses))
    }

    fn trickled(&self, flood: &Flood) -> Got<Durations> {
        let every = u64::try_from(flood.every.as_millis())?;
        let (mut process, _) = self.client("floor-trickle", [flood.records, every])?;
        process.go()?;
        let mut took = Durations::default();
        for _ in 0..flood.trickles {
            let line = process.line()?;
            let microseconds = line.strip_prefix("acked ").ok_or("a client says what is not understood")?;
            took.push(Duration::from_micros(microseconds.parse()?));
        }
        Ok(took)
    }
}

fn rest_until(at: Instant) {
    rest(at.saturating_duration_since(now()).as_millis() as u64);
}

/// What the process of the flood does, which is told its bytes a second: sends a third to each node, at its pace, until it is
/// ended.
pub fn flood(words: &[String]) -> Done {
    let told = Told::new(words)?;
    let generator = Generator::new(Input::Uniform, Shape::USUAL, READY_BYTES / RECORD_BYTES as u64, SEED);
    let generator = generator.ok_or("no room")?;
    let mut records = vec![0; READY_BYTES as usize / RECORD_BYTES * RECORD_BYTES];
    generator.write_all(0, &mut records);
    let frames: Vec<&[u8]> = records.chunks(FRAME_RECORDS * RECORD_BYTES).collect();
    let sockets = told.connect(b"c")?;
    ready("ready")?;
    let begin = now();
    let bytes_s = told.numbers[0] as f64 / NODES as f64;
    each(sockets, |number, mut socket| {
        let mut sent = 0;
        for frame in frames.iter().cycle().skip(number).step_by(NODES) {
            socket.send(0, crc32c::crc32c(frame), frame)?;
            sent += frame.len();
            rest_until(begin + Duration::from_secs_f64(sent as f64 / bytes_s));
        }
        Ok(())
    })?;
    Ok(())
}

/// What the process of the other one does, until it is ended. It is told the records of a write, and the milliseconds between the
/// beginnings of two. It says `acked MICROSECONDS` for each write.
pub fn trickle(words: &[String]) -> Done {
    let told = Told::new(words)?;
    let [count, every_ms] = told.numbers;
    let every = Duration::from_millis(every_ms);
    let generator = Generator::new(Input::Uniform, Shape::USUAL, count, SEED).ok_or("no room")?;
    let mut records = vec![0; usize::try_from(count)? * RECORD_BYTES];
    if records.len() > FRAME_BYTES {
        return Err("a small write is one frame".into());
    }
    let mut socket = told.way.connect(&told.nodes, Path::new(&told.folder), 0)?;
    socket.put(b"t", &[])?;
    ready("ready")?;
    loop {
        let begin = now();
        generator.write_all(0, &mut records);
        socket.send(0, crc32c::crc32c(&records), &records)?;
        socket.receive_end()?;
        say(&format!("acked {}", (now() - begin).as_micros()));
        rest_until(begin + every);
    }
}
