//! The first half of a sort: pieces of files become input partitions, and the shuffle is sealed.

use super::layout::{Layout, Piece};
use super::{Sort, Sum};
use crate::output::Failure;
use crate::shuffle::control::lacks;
use crate::shuffle::nodes::{failure, own};
use indicatif::ProgressBar;
use partage_core::limits::{SHUFFLE_KEY_BYTES, SHUFFLE_RECORD_BYTES};
use partage_shuffle_client::{Attempt, Error, PackedRecords, Sealed, Written, put_record};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};

/// Bytes of records in a frame: a node divides long ones with less work.
const FRAME_BYTES: usize = 1 << 20;

/// Frames of a piece that are read and not sent yet.
const FRAMES_AHEAD: usize = 4;

/// How often input partitions are written again that the shuffle lacks when it is to be sealed: each time, nodes have died that
/// had all that there was of one.
const SEALS: usize = 3;

/// Records that are read, and how many bytes of the piece were read for them.
type Frame = (PackedRecords, u64);

impl Sort {
    /// Writes all pieces, and seals.
    pub(super) async fn write(&self, pieces: &[Piece], bytes: u64) -> Result<Sum, Failure> {
        let bar = self.bar(
            "writing",
            bytes,
            "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} to go",
        );
        let inputs = pieces.len() as u32;
        let mut missing: Vec<u32> = (0..inputs).collect();
        for _ in 0..SEALS {
            self.write_pieces(pieces, &missing, &bar).await?;
            self.layout.all_read()?;
            bar.set_message("sealing");
            match self.client.seal(self.shuffle.id, 0..inputs).await.map_err(failure)? {
                Sealed::Whole { records, bytes } => {
                    bar.finish_and_clear();
                    return Ok(Sum { records, bytes });
                }
                Sealed::Lacks(partitions) => missing = partitions,
            }
        }
        Err(lacks(&missing))
    }

    /// Writes those pieces, several at once.
    async fn write_pieces(
        &self,
        pieces: &[Piece],
        numbers: &[u32],
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        let mut under_way = JoinSet::new();
        for number in numbers {
            let Some(piece) = pieces.get(*number as usize) else { continue };
            if under_way.len() >= self.at_once {
                one_of(&mut under_way).await?;
            }
            under_way.spawn(self.clone().write_piece(*number, piece.clone(), bar.clone()));
        }
        while !under_way.is_empty() {
            one_of(&mut under_way).await?;
        }
        Ok(())
    }

    /// Writes one piece, in as many attempts as it takes.
    async fn write_piece(self, number: u32, piece: Piece, bar: ProgressBar) -> Result<Written, Error> {
        let produce = |attempt| attempt_of(attempt, Arc::clone(&self.layout), piece.clone(), bar.clone());
        self.client.write(&self.shuffle, number, produce).await
    }
}

async fn one_of(under_way: &mut JoinSet<Result<Written, Error>>) -> Result<(), Failure> {
    match under_way.join_next().await {
        Some(Ok(written)) => written.map(drop).map_err(failure),
        Some(Err(panicked)) => Err(Failure::failed(panicked)),
        None => Ok(()),
    }
}

/// One attempt: a thread reads the piece, and what it has ready is sent.
async fn attempt_of(
    mut attempt: Attempt,
    layout: Arc<Layout>,
    piece: Piece,
    bar: ProgressBar,
) -> Result<Written, Error> {
    let (give, mut frames) = mpsc::channel(FRAMES_AHEAD);
    let reading = spawn_blocking(move || read(&layout, &piece, &give));
    let mut shown = 0;
    let mut sent = Ok(());
    while let Some((records, read)) = frames.recv().await {
        sent = attempt.put(records).await;
        if sent.is_err() {
            break;
        }
        bar.inc(read);
        shown += read;
    }
    // The thread ends when nothing takes its frames.
    drop(frames);
    let read = reading.await.map_err(Error::own).and_then(|read| read.map_err(own));
    let ended = match sent.and(read) {
        Ok(()) => attempt.end().await,
        Err(error) => Err(error),
    };
    if ended.is_err() {
        bar.dec(shown);
    }
    ended
}

/// Reads a piece into frames, for as long as they are taken.
fn read(layout: &Layout, piece: &Piece, give: &mpsc::Sender<Frame>) -> Result<(), Failure> {
    let (mut packed, mut count, mut given) = (Vec::new(), 0_u64, 0);
    let (mut found, mut at) = (Ok(()), 0);
    let mut send = |packed: &mut Vec<u8>, count: &mut u64, at: u64| -> Result<bool, Failure> {
        let next = Vec::with_capacity(FRAME_BYTES);
        let bytes = std::mem::replace(packed, next);
        let records = PackedRecords::new(std::mem::take(count), bytes.into());
        let records = records.map_err(|why| Failure::failed(format!("{}: {why}", piece.name())))?;
        let read = at - given;
        given = at;
        Ok(give.blocking_send((records, read)).is_ok())
    };
    layout.read(piece, &mut |key, value, read| {
        if key.len() > SHUFFLE_KEY_BYTES || key.len() + value.len() > SHUFFLE_RECORD_BYTES {
            found = Err(too_large(piece, key.len(), value.len()));
            return false;
        }
        put_record(key, value, &mut packed);
        (count, at) = (count + 1, read);
        if packed.len() < FRAME_BYTES {
            return true;
        }
        match send(&mut packed, &mut count, at) {
            Ok(is_taken) => is_taken,
            Err(failure) => {
                found = Err(failure);
                false
            }
        }
    })?;
    found?;
    if count > 0 {
        send(&mut packed, &mut count, at)?;
    }
    Ok(())
}

fn too_large(piece: &Piece, key: usize, value: usize) -> Failure {
    Failure::refused(format!(
        "{}: a row has {key} bytes in the columns that it is sorted by, and {value} bytes in all: it may have \
         {SHUFFLE_KEY_BYTES} and {SHUFFLE_RECORD_BYTES}",
        piece.name()
    ))
    .help("sort by a shorter column, or leave that row out")
}
