//! A node of the floor: buffer and holder in one process.
//!
//! ```text
//!  client ── frames ──► divide into chunks of ranges ──┬─► own file, if this node has the range
//!                                                      └─► the other nodes that have it ──► their files
//!  reader ◄── frames ── gather ◄── sort ◄── chunks of a range, read back
//! ```

use super::disk::{Aligned, Store};
use super::wire::{FRAME_BYTES, FRAME_RECORDS, RECORD_BYTES, Socket, Way, socket_of};
use super::{NODES, REPLICAS, range_of};
use crate::Done;
use bench_gauge::complain;
use std::io::{Error, Read, Result};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Of an entry that is sorted: the piece of the key stands above, the place of the record below.
const PLACE_BITS: u32 = 24;

struct Node {
    number: usize,
    ranges: usize,
    way: Way,
    folder: PathBuf,
    nodes: Vec<String>,
    store: Store,
    /// What dividing and reading take: made before anything is measured.
    chunks: Mutex<Option<Aligned>>,
    arena: Mutex<Option<Aligned>>,
}

/// What the process of a node does.
pub fn node(words: &[String]) -> Done {
    let [_, number, ranges, records, way, folder, nodes @ ..] = words else {
        return Err("floor-node NUMBER RANGES RECORDS WAY FOLDER ADDRESS ADDRESS ADDRESS".into());
    };
    let (number, ranges, records): (usize, usize, usize) =
        (number.parse()?, ranges.parse()?, records.parse()?);
    let (way, folder) = (Way::named(way)?, PathBuf::from(folder));
    let store = Store::create(&folder.join(format!("{number}.chunks")), ranges)?;
    // Each process that divides leaves a chunk that is not full.
    let slots = records / ranges / FRAME_RECORDS + NODES + 2;
    let node = Arc::new(Node {
        number,
        ranges,
        way,
        nodes: nodes.to_vec(),
        store,
        chunks: Mutex::new(Some(Aligned::new(ranges * FRAME_BYTES))),
        arena: Mutex::new(Some(Aligned::new((slots + slots / 4) * FRAME_BYTES))),
        folder,
    });
    if way == Way::Unix {
        let listener = UnixListener::bind(socket_of(&node.folder, number))?;
        let node = Arc::clone(&node);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(&node, Socket::Unix(stream));
            }
        });
    }
    // Also where sockets are Unix's: the process that starts the node looks there whether it listens.
    for stream in TcpListener::bind(&nodes[number])?.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        serve(&node, Socket::Tcp(stream));
    }
    Ok(())
}

fn serve(node: &Arc<Node>, mut socket: Socket) {
    let node = Arc::clone(node);
    std::thread::spawn(move || {
        let mut role = [0];
        let done = match socket.read_exact(&mut role).map(|()| role) {
            Ok([b'c']) => node.divide(socket),
            Ok([b'n']) => node.hold(socket),
            Ok([b'r']) => node.read(socket),
            Ok([b't']) => node.divide_little(socket),
            Ok([b'h']) => node.hold_little(socket),
            // The client only looked whether the node listens.
            _ => Ok(()),
        };
        if let Err(error) = done {
            complain(&format!("node {}: {error}", node.number));
        }
    });
}

/// Takes what was made beforehand.
fn taken(of: &Mutex<Option<Aligned>>) -> Result<Aligned> {
    let mut made = of.lock().unwrap_or_else(PoisonError::into_inner);
    made.take().ok_or_else(|| Error::other("this node has one client and one reader"))
}

/// The nodes that have a range.
fn holders(range: usize) -> impl Iterator<Item = usize> {
    (0..REPLICAS).map(move |replica| (range + replica) % NODES)
}

impl Node {
    /// Takes the frames of a client, and sends what is in them to the nodes that have it.
    fn divide(&self, mut client: Socket) -> Result<()> {
        let mut chunks = taken(&self.chunks)?;
        let mut lengths = vec![0; self.ranges];
        let mut others: Vec<Option<Socket>> = Vec::new();
        for number in 0..NODES {
            let connect = || {
                let mut other = self.way.connect(&self.nodes, &self.folder, number)?;
                other.put(b"n", &[])?;
                Ok::<_, Error>(other)
            };
            others.push((number != self.number).then(connect).transpose()?);
        }
        let mut frame = Aligned::new(FRAME_BYTES);
        while let Some((_, _, bytes)) = client.receive(frame.get_mut())? {
            for record in frame.get()[..bytes].chunks_exact(RECORD_BYTES) {
                let range = range_of(record, self.ranges);
                let (begin, length) = (range * FRAME_BYTES, &mut lengths[range]);
                let place = begin + *length;
                chunks.get_mut()[place..place + RECORD_BYTES].copy_from_slice(record);
                *length += RECORD_BYTES;
                if *length + RECORD_BYTES > FRAME_BYTES {
                    let bytes = std::mem::take(length);
                    self.flush(range, &chunks.get()[begin..begin + FRAME_BYTES], bytes, &mut others)?;
                }
            }
        }
        for (range, bytes) in lengths.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
            let begin = range * FRAME_BYTES;
            self.flush(range, &chunks.get()[begin..begin + FRAME_BYTES], bytes, &mut others)?;
        }
        others.iter_mut().flatten().try_for_each(Socket::send_end)?;
        self.store.sync()?;
        others.iter_mut().flatten().try_for_each(Socket::receive_end)?;
        client.send_end()
    }

    fn flush(&self, range: usize, chunk: &[u8], bytes: usize, others: &mut [Option<Socket>]) -> Result<()> {
        let sum = crc32c::crc32c(&chunk[..bytes]);
        for holder in holders(range) {
            match &mut others[holder] {
                Some(other) => other.send(range as u32, sum, &chunk[..bytes])?,
                None => self.store.put(range, sum, chunk, bytes)?,
            }
        }
        Ok(())
    }

    /// Writes the chunks that another node sends.
    fn hold(&self, mut other: Socket) -> Result<()> {
        let mut chunk = Aligned::new(FRAME_BYTES);
        while let Some((range, sum, bytes)) = other.receive(chunk.get_mut())? {
            self.store.put(range as usize, sum, chunk.get(), bytes)?;
        }
        self.store.sync()?;
        other.send_end()
    }

    /// Takes small writes of a client, one after the other: each is on the disks of two nodes before it is answered.
    fn divide_little(&self, mut client: Socket) -> Result<()> {
        let mut next = self.way.connect(&self.nodes, &self.folder, (self.number + 1) % NODES)?;
        next.put(b"h", &[])?;
        let mut chunk = Aligned::new(FRAME_BYTES);
        while let Some((range, sum, bytes)) = client.receive(chunk.get_mut())? {
            next.send(range, sum, &chunk.get()[..bytes])?;
            self.store.put(range as usize, sum, chunk.get(), bytes)?;
            self.store.sync()?;
            next.receive_end()?;
            client.send_end()?;
        }
        Ok(())
    }

    /// Holds what another node sends of them.
    fn hold_little(&self, mut other: Socket) -> Result<()> {
        let mut chunk = Aligned::new(FRAME_BYTES);
        while let Some((range, sum, bytes)) = other.receive(chunk.get_mut())? {
            self.store.put(range as usize, sum, chunk.get(), bytes)?;
            self.store.sync()?;
            other.send_end()?;
        }
        Ok(())
    }

    /// Reads the ranges that a reader asks for, sorts each, and sends it.
    fn read(&self, mut reader: Socket) -> Result<()> {
        let mut arena = taken(&self.arena)?;
        let mut frame = vec![0; FRAME_BYTES];
        let mut entries: Vec<u64> = Vec::with_capacity(arena.get().len() / RECORD_BYTES);
        let mut asked = [0; 4];
        while reader.read_exact(&mut asked).is_ok() {
            let range = u32::from_be_bytes(asked);
            let extents = self.store.extents(range as usize);
            if extents.len() * FRAME_RECORDS > 1 << PLACE_BITS {
                return Err(Error::other("a range has too many records for the floor: give more --ranges"));
            }
            if arena.get().len() < extents.len() * FRAME_BYTES {
                arena = Aligned::new(extents.len() * FRAME_BYTES);
            }
            entries.clear();
            let common = common_bits(range as usize, self.ranges);
            for (slot, extent) in extents.into_iter().enumerate() {
                let chunk = &mut arena.get_mut()[slot * FRAME_BYTES..(slot + 1) * FRAME_BYTES];
                self.store.get(extent, chunk)?;
                let records = chunk[..extent.bytes].chunks_exact(RECORD_BYTES);
                let first = slot * FRAME_RECORDS;
                entries.extend(records.zip(first..).map(|(record, place)| entry(record, place, common)));
            }
            sort(&mut entries, arena.get());
            send_sorted(&mut reader, range, &entries, arena.get(), &mut frame)?;
        }
        Ok(())
    }
}

/// Bits that all keys of a range begin with.
fn common_bits(range: usize, ranges: usize) -> u32 {
    // The first and the last beginning of two bytes in it, as `range_of` divides.
    let first = (range << 16).div_ceil(ranges) as u64;
    let last = ((range + 1) << 16).div_ceil(ranges) as u64 - 1;
    ((first ^ last) << 48 | 0xffff_ffff_ffff).leading_zeros()
}

/// A piece of the key behind what all keys have in common, and the place of the record.
fn entry(record: &[u8], place: usize, common: u32) -> u64 {
    let word = record.first_chunk().map_or(0, |word| u64::from_be_bytes(*word));
    (word << common) >> PLACE_BITS << PLACE_BITS | place as u64
}

fn place_of(entry: u64) -> usize {
    let place = (entry & ((1 << PLACE_BITS) - 1)) as usize;
    place / FRAME_RECORDS * FRAME_BYTES + place % FRAME_RECORDS * RECORD_BYTES
}

/// By the piece of the key, and where that is the same by the whole of it.
fn sort(entries: &mut [u64], arena: &[u8]) {
    entries.sort_unstable();
    let key = |entry: &u64| {
        let place = place_of(*entry);
        arena[place..place + super::KEY_BYTES].to_vec()
    };
    for run in entries.chunk_by_mut(|one, other| one >> PLACE_BITS == other >> PLACE_BITS) {
        if run.len() > 1 {
            run.sort_by_cached_key(key);
        }
    }
}

fn send_sorted(
    reader: &mut Socket,
    range: u32,
    entries: &[u64],
    arena: &[u8],
    frame: &mut [u8],
) -> Result<()> {
    for some in entries.chunks(FRAME_RECORDS) {
        for (entry, room) in some.iter().zip(frame.chunks_exact_mut(RECORD_BYTES)) {
            let place = place_of(*entry);
            room.copy_from_slice(&arena[place..place + RECORD_BYTES]);
        }
        let records = &frame[..some.len() * RECORD_BYTES];
        reader.send(range, crc32c::crc32c(records), records)?;
    }
    reader.send_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_of_a_range_begin_with_the_bits_that_it_says() {
        assert_eq!((common_bits(0, 256), common_bits(255, 256), common_bits(0, 1)), (8, 8, 0));
        for ranges in [3, 7, 256, 640] {
            for top in 0..=u16::MAX {
                let mut record = [0; RECORD_BYTES];
                record[..2].copy_from_slice(&top.to_be_bytes());
                let range = range_of(&record, ranges);
                let common = common_bits(range, ranges);
                let first = (range << 16).div_ceil(ranges) as u64;
                let both = (first ^ u64::from(top)) << 48;
                assert!(both == 0 || both.leading_zeros() >= common, "{top} in range {range} of {ranges}");
            }
        }
    }

    #[test]
    fn records_are_sorted_by_the_whole_key_also_where_its_piece_is_the_same() {
        let mut arena = vec![0; FRAME_BYTES];
        let keys: [&[u8]; 4] = [b"aaaaaaaab2", b"aaaaaaaab1", b"aaaaaaaaa9", b"aaaaaaaaa0"];
        for (key, room) in keys.iter().zip(arena.chunks_exact_mut(RECORD_BYTES)) {
            room[..10].copy_from_slice(key);
        }
        let mut entries: Vec<u64> = arena[..400]
            .chunks_exact(RECORD_BYTES)
            .zip(0..)
            .map(|(record, place)| entry(record, place, 0))
            .collect();
        sort(&mut entries, &arena);
        let sorted: Vec<usize> = entries.iter().map(|entry| place_of(*entry) / RECORD_BYTES).collect();
        assert_eq!(sorted, [3, 2, 1, 0]);
    }
}
