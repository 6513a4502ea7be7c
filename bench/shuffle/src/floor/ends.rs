//! The two ends of the floor: a client that has its records ready, and a reader that checks what comes out.

use super::wire::{FRAME_BYTES, FRAME_RECORDS, RECORD_BYTES, Socket, Way};
use super::{KEY_BYTES, NODES, range_of};
use crate::client_process::{ready, word_of};
use crate::{Done, SEED};
use bench_shuffle::check::{Checker, Order, Tally};
use bench_shuffle::generate::{Generator, Input, Shape};
use std::io::{Error, Result};
use std::path::{Path, PathBuf};

/// The arguments of an end: two numbers, of which each end says what they are, and where the nodes are.
pub(super) struct Told {
    pub(super) numbers: [u64; 2],
    pub(super) way: Way,
    pub(super) folder: PathBuf,
    pub(super) nodes: Vec<String>,
}

impl Told {
    pub(super) fn new(words: &[String]) -> std::result::Result<Told, Box<dyn std::error::Error>> {
        let [_, one, other, way, folder, nodes @ ..] = words else {
            return Err("NUMBER NUMBER WAY FOLDER ADDRESS ADDRESS ADDRESS".into());
        };
        Ok(Told {
            numbers: [one.parse()?, other.parse()?],
            way: Way::named(way)?,
            folder: Path::new(folder).to_owned(),
            nodes: nodes.to_vec(),
        })
    }

    pub(super) fn connect(&self, role: &[u8]) -> Result<Vec<Socket>> {
        let connect = |number| {
            let mut socket = self.way.connect(&self.nodes, &self.folder, number)?;
            socket.put(role, &[])?;
            Ok(socket)
        };
        (0..NODES).map(connect).collect()
    }
}

/// Runs the same with each, on a thread for each, and gives what comes of it.
pub(super) fn each<A: Send, T: Send>(
    all: Vec<A>,
    work: impl Fn(usize, A) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            all.into_iter().enumerate().map(|(at, one)| scope.spawn(move || work(at, one))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| Error::other("a thread has failed"))?)
            .collect()
    })
}

/// What the process of the client does, which is told how many records there are and how many ranges: says what it has, sends a
/// third to each node, and ends when all of it is stored.
pub fn client(words: &[String]) -> Done {
    let told = Told::new(words)?;
    let [count, _] = told.numbers;
    let generator = Generator::new(Input::Uniform, Shape::USUAL, count, SEED).ok_or("no room")?;
    let mut records = vec![0; usize::try_from(count)? * RECORD_BYTES];
    generator.write_all(0, &mut records);
    let mut tally = Tally::default();
    records.chunks_exact(RECORD_BYTES).for_each(|record| tally.add(record));
    let sockets = told.connect(b"c")?;
    ready(&word_of(tally))?;
    let frames: Vec<&[u8]> = records.chunks(FRAME_RECORDS * RECORD_BYTES).collect();
    each(sockets, |number, mut socket| {
        for frame in frames.iter().skip(number).step_by(NODES) {
            socket.send(0, crc32c::crc32c(frame), frame)?;
        }
        socket.send_end()?;
        socket.receive_end()
    })?;
    ready("done")?;
    Ok(())
}

/// What the process of the reader does, which is told the same: reads each range from one of the nodes that have it, and says
/// what it has seen.
pub fn reader(words: &[String]) -> Done {
    let told = Told::new(words)?;
    let ranges = usize::try_from(told.numbers[1])?;
    let sockets = told.connect(b"r")?;
    ready("ready")?;
    let tallies = each(sockets, |number, mut socket| {
        let (mut frame, mut tally) = (vec![0; FRAME_BYTES], Tally::default());
        for range in (number..ranges).step_by(NODES) {
            socket.put(&(range as u32).to_be_bytes(), &[])?;
            tally += check_range(&mut socket, range, ranges, &mut frame)?;
        }
        Ok(tally)
    })?;
    let mut all = Tally::default();
    tallies.into_iter().for_each(|tally| all += tally);
    ready(&word_of(all))?;
    Ok(())
}

/// A range is in order, and everything in it belongs there: so all ranges together are in order.
fn check_range(socket: &mut Socket, range: usize, ranges: usize, frame: &mut [u8]) -> Result<Tally> {
    let mut checker = Checker::new(KEY_BYTES, Order::Keys);
    while let Some((_, _, bytes)) = socket.receive(frame)? {
        for record in frame[..bytes].chunks_exact(RECORD_BYTES) {
            checker.take(record).map_err(Error::other)?;
            if range_of(record, ranges) != range {
                return Err(Error::other(format!(
                    "a record lies in range {range} and does not belong there"
                )));
            }
        }
    }
    Ok(checker.tally())
}
