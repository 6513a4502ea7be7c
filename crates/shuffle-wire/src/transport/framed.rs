//! Frames on the two directions of a connection.
//!
//! Until the end that has connected has said who it is, and the other end has answered, no body is longer than
//! [`OPENING_BYTES`].

use super::address::{ReadHalf, WriteHalf};
use crate::client::{Again, Refusal, RefusalWord};
use crate::frame::{Frame, HEADER_BYTES, Header, Sequence};
use crate::limits::{GATHERED_BYTES, OPENING_BYTES, PIECE_BYTES, ROOM_AT_ONCE, UNCOUNTED_BYTES};
use crate::malformed::FrameError;
use bytes::{BufMut, Bytes, BytesMut};
use partage_service::shuffle::ShuffleId;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io::{Error, ErrorKind, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Small, so that of a body hardly anything is read into it: the rest goes where it stays.
const BUFFER_BYTES: usize = 4_096;
/// A body up to here is copied beside its header; a longer one is written from where it lies.
const SMALL_BYTES: usize = 16 << 10;
/// Bytes that one permit of [`Room`] stands for.
const ROOM_UNIT: usize = 1 << 10;

/// Why a connection has ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The other end has ended it, between two frames.
    #[error("the other end has closed the connection")]
    Ended,
    /// The other end has closed the connection, and says why.
    #[error("the other end has closed the connection: {0}")]
    Refused(Refusal),
    /// A frame is not taken.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// The other end sent nothing for so long, not even a pong.
    #[error("nothing was heard on the connection for {0:?}")]
    Silent(Duration),
    /// The other end has not said in time who it is.
    #[error("the other end has not said within {0:?} who it is")]
    Late(Duration),
    /// The other end takes nothing.
    #[error("the other end has taken nothing for {0:?}")]
    Stalled(Duration),
    /// The connection was in the middle of a frame when it was given up.
    #[error("the connection was given up in the middle of a frame")]
    Broken,
    /// The system has reported an error of the connection.
    #[error("the connection failed: {1}")]
    Failed(ErrorKind, String),
}

impl From<Error> for Closed {
    fn from(error: Error) -> Closed {
        Closed::Failed(error.kind(), error.to_string())
    }
}

impl Closed {
    /// The last frame to the other end; none when that has ended the connection itself, or is gone.
    pub(super) fn goodbye(&self) -> Option<Refusal> {
        match self {
            Closed::Frame(why) => Some(why.into()),
            Closed::Refused(refusal) => Some(refusal.clone()),
            Closed::Late(_) | Closed::Silent(_) | Closed::Stalled(_) => {
                Some(Refusal::new(RefusalWord::ConnectionSilent, Again::Attempt, self))
            }
            Closed::Ended | Closed::Broken | Closed::Failed(..) => None,
        }
    }
}

/// How often the other end has taken bytes that had to wait for it: so it is there, though it says nothing. What a socket takes
/// at once says nothing of the other end.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Arc<AtomicU64>);

impl Progress {
    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Room for long frames that come on all connections of a kind. One that is longer than it is read alone.
///
/// An eighth of it is for frames that find none in the rest: short ones, one of each shuffle. So the frames of a shuffle that
/// floods a node, which have their room as long as the node has none for their records, do not keep those of others out. With
/// little room an eighth is of no use, and nothing is kept: frames that had place in it take no room anyway.
#[derive(Debug, Clone)]
pub(super) struct Room {
    free: Arc<Semaphore>,
    most: u32,
    kept: Arc<KeptRoom>,
}

/// The last eighth.
#[derive(Debug)]
struct KeptRoom {
    free: Arc<Semaphore>,
    /// What a frame may have of it.
    most: u32,
    /// The shuffles that have a frame in it.
    shuffles: Mutex<BTreeSet<ShuffleId>>,
}

/// The room of a frame.
#[derive(Debug)]
struct HeldRoom {
    _permit: OwnedSemaphorePermit,
    /// Of which shuffle the frame is, if it is in the last eighth.
    kept: Option<(Arc<KeptRoom>, ShuffleId)>,
}

impl Drop for HeldRoom {
    fn drop(&mut self) {
        if let Some((kept, shuffle)) = &self.kept {
            kept.lock().remove(shuffle);
        }
    }
}

impl KeptRoom {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<ShuffleId>> {
        // Each change under this lock is one step.
        self.shuffles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn semaphore(permits: u32) -> Arc<Semaphore> {
    let permits = usize::try_from(permits).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
    Arc::new(Semaphore::new(permits))
}

impl Room {
    pub(super) fn new(bytes: usize) -> Room {
        let all = u32::try_from(bytes / ROOM_UNIT).unwrap_or(u32::MAX);
        // An eighth of it again, and the header of a frame: with 16 MiB clients may send frames of 256 KiB.
        let (kept, most_kept) = match (all / 8, all / 64) {
            (_, short) if short as usize * ROOM_UNIT <= UNCOUNTED_BYTES => (0, 0),
            (kept, short) => (kept, short + 1),
        };
        let most = (all - kept).max(1);
        let kept = Arc::new(KeptRoom { free: semaphore(kept), most: most_kept, shuffles: Mutex::default() });
        Room { free: semaphore(most), most, kept }
    }

    /// Waits for room. A short frame needs none.
    async fn take(&self, shuffle: Option<ShuffleId>, bytes: usize) -> Option<HeldRoom> {
        if bytes <= UNCOUNTED_BYTES {
            return None;
        }
        let all = u32::try_from(bytes.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
        let units = all.min(self.most);
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_many_owned(units) {
            return Some(HeldRoom { _permit: permit, kept: None });
        }
        if let Some(held) = shuffle.and_then(|shuffle| self.take_kept(shuffle, all)) {
            return Some(held);
        }
        // The semaphore is never closed.
        let permit = Arc::clone(&self.free).acquire_many_owned(units).await.ok()?;
        Some(HeldRoom { _permit: permit, kept: None })
    }

    fn take_kept(&self, shuffle: ShuffleId, units: u32) -> Option<HeldRoom> {
        let mut shuffles = self.kept.lock();
        if units > self.kept.most || shuffles.contains(&shuffle) {
            return None;
        }
        let permit = Arc::clone(&self.kept.free).try_acquire_many_owned(units).ok()?;
        shuffles.insert(shuffle);
        Some(HeldRoom { _permit: permit, kept: Some((Arc::clone(&self.kept), shuffle)) })
    }
}

/// The frames that come in.
pub(super) struct FrameReader {
    half: BufReader<ReadHalf>,
    sequence: Sequence,
    /// How long a byte may take, unless the other end takes bytes meanwhile.
    silent: Duration,
    /// How often the other end has taken what is written on the same connection.
    progress: Progress,
    /// Bytes of a body at most, besides the limits of its kind.
    most: usize,
    /// None: there is room for whatever comes.
    room: Option<Room>,
    /// The room of the last long frame, until the next one is asked for.
    held: Option<HeldRoom>,
    /// A frame was begun and not ended: its reader was dropped.
    is_inside: bool,
}

impl FrameReader {
    /// Reads a connection whose other end is not known yet.
    pub(super) fn new(half: ReadHalf, silent: Duration) -> FrameReader {
        let half = BufReader::with_capacity(BUFFER_BYTES, half);
        FrameReader {
            half,
            sequence: Sequence::default(),
            silent,
            progress: Progress::default(),
            most: OPENING_BYTES,
            room: None,
            held: None,
            is_inside: false,
        }
    }

    /// The other end is known: from now on a frame may be as long as its kind, and a byte may take so long, or longer while the
    /// other end takes what is written to it.
    pub(super) fn opened(&mut self, silent: Duration, progress: Progress) {
        (self.silent, self.progress, self.most) = (silent, progress, usize::MAX);
    }

    /// From now on a long frame is read when there is room for it, which it has until the next frame is asked for.
    pub(super) fn waits_for(&mut self, room: &Room) {
        self.room = Some(room.clone());
    }

    /// Whether the connection stands between two frames, and nothing has come on it, not even its end, as far as is known now.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        !self.is_inside && Pin::new(&mut self.half).poll_fill_buf(&mut context).is_pending()
    }

    /// The next frame; none: the other end has closed the connection behind the last one. If it is dropped before it is done, the
    /// connection is of no use any more.
    pub(super) async fn next(&mut self) -> Result<Option<Frame>, Closed> {
        if self.is_inside {
            return Err(Closed::Broken);
        }
        self.is_inside = true;
        self.held = None;
        let frame = self.read().await?;
        self.is_inside = false;
        Ok(frame)
    }

    async fn read(&mut self) -> Result<Option<Frame>, Closed> {
        let mut header = [0; HEADER_BYTES];
        let mut found = 0;
        while found < HEADER_BYTES {
            let read = self.half.read(&mut header[found..]);
            match patient(self.silent, &self.progress, read).await? {
                0 if found == 0 => return Ok(None),
                0 => return Err(FrameError::Cut { found, expected: HEADER_BYTES }.into()),
                read => found += read,
            }
        }
        let header = Header::decode(&header)?;
        self.sequence.take(header.number)?;
        if header.bytes > self.most {
            return Err(
                FrameError::TooLong { kind: header.kind, bytes: header.bytes, most: self.most }.into()
            );
        }
        if let Some(room) = &self.room {
            self.held = room.take(header.shuffle, header.bytes).await;
        }
        let body = self.body(header.bytes).await?;
        Ok(Some(header.frame(body)?))
    }

    /// Room is made for what has come, and for as much again.
    async fn body(&mut self, bytes: usize) -> Result<Bytes, Closed> {
        let mut body = BytesMut::with_capacity(bytes.min(ROOM_AT_ONCE));
        while body.len() < bytes {
            let left = bytes - body.len();
            if body.len() == body.capacity() {
                body.reserve(left.min(body.len()));
            }
            let mut room = (&mut body).limit(left);
            let read = self.half.read_buf(&mut room);
            if patient(self.silent, &self.progress, read).await? == 0 {
                let (found, expected) = (HEADER_BYTES + body.len(), HEADER_BYTES + bytes);
                return Err(FrameError::Cut { found, expected }.into());
            }
        }
        Ok(body.freeze())
    }

    /// Reads what still comes and forgets it, until the other end closes: else the system would cut the connection off, and with
    /// it the last words.
    pub(super) async fn drain(&mut self) {
        self.held = None;
        let mut forgotten = [0; BUFFER_BYTES];
        while self.half.read(&mut forgotten).await.is_ok_and(|read| read > 0) {}
    }
}

/// Waits for what is read as long as the other end may be silent, and as long again if it took what is written to it meanwhile:
/// an end that takes a long frame answers no ping before it has all of it.
async fn patient<T>(
    silent: Duration,
    progress: &Progress,
    read: impl Future<Output = Result<T, Error>>,
) -> Result<T, Closed> {
    let mut read = pin!(read);
    let mut before = progress.count();
    loop {
        if let Ok(read) = timeout(silent, &mut read).await {
            return Ok(read?);
        }
        let now = progress.count();
        if now == before {
            return Err(Closed::Silent(silent));
        }
        before = now;
    }
}

/// The frames that go out.
pub(super) struct FrameWriter {
    /// None: the connection has ended.
    half: Option<WriteHalf>,
    number: u64,
    stalled: Duration,
    progress: Progress,
    /// A frame was begun and not ended: its writer was dropped, or failed.
    is_inside: bool,
}

impl FrameWriter {
    pub(super) fn new(half: WriteHalf, stalled: Duration) -> FrameWriter {
        let (half, progress) = (Some(half), Progress::default());
        FrameWriter { half, number: 0, stalled, progress, is_inside: false }
    }

    /// From now on the other end may take nothing for so long.
    pub(super) fn wait_for(&mut self, stalled: Duration) {
        self.stalled = stalled;
    }

    /// What the other end takes.
    pub(super) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Writes frames, one after the other. If it is dropped before it is done, the connection is of no use any more.
    pub(super) async fn write(&mut self, frames: &[Frame]) -> Result<(), Closed> {
        if self.is_inside {
            return Err(Closed::Broken);
        }
        self.is_inside = true;
        let mut head = Vec::new();
        for frame in frames {
            let body = frame.body();
            if body.len() <= SMALL_BYTES {
                frame.encode(self.number, &mut head);
                if head.len() >= GATHERED_BYTES {
                    self.write_all(&head, &[]).await?;
                    head.clear();
                }
            } else {
                head.extend_from_slice(&frame.header(self.number));
                self.write_all(&head, body).await?;
                head.clear();
            }
            self.number += 1;
        }
        self.write_all(&head, &[]).await?;
        self.is_inside = false;
        Ok(())
    }

    async fn write_all(&mut self, mut head: &[u8], mut body: &[u8]) -> Result<(), Closed> {
        let Some(half) = &mut self.half else { return Err(Closed::Ended) };
        while !head.is_empty() || !body.is_empty() {
            let piece = &body[..body.len().min(PIECE_BYTES)];
            let slices = [IoSlice::new(head), IoSlice::new(piece)];
            let mut has_waited = false;
            let mut write = pin!(half.write_vectored(&slices));
            let write = poll_fn(|context| {
                let polled = write.as_mut().poll(context);
                has_waited |= polled.is_pending();
                polled
            });
            let written = timeout(self.stalled, write).await.map_err(|_| Closed::Stalled(self.stalled))??;
            if written == 0 {
                return Err(Error::from(ErrorKind::WriteZero).into());
            }
            if has_waited {
                self.progress.add();
            }
            let of_head = written.min(head.len());
            head = &head[of_head..];
            body = &body[written - of_head..];
        }
        Ok(())
    }

    /// Tells the other end that nothing more comes; it may still send.
    pub(super) async fn end(&mut self) {
        if let Some(half) = &mut self.half {
            // The other end may be gone.
            let _ = half.shutdown().await;
        }
    }

    /// Lets go of the connection, although other tasks may have this writer too.
    pub(super) fn close(&mut self) {
        self.half = None;
    }

    /// Lets go of the connection if a frame was begun and will not be ended.
    pub(super) fn close_broken(&mut self) {
        if self.is_inside {
            self.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn r1_short_frames_of_other_shuffles_have_room_beside_those_of_a_flood() {
        let room = Room::new(16 << 20);
        let take = |shuffle: u128, bytes: usize| {
            timeout(Duration::from_millis(20), room.take(Some(ShuffleId(shuffle)), bytes))
        };
        let mut flood = Vec::new();
        while let Ok(held) = take(1, 256 << 10).await {
            flood.push(held);
        }
        assert_eq!(flood.len(), 57, "14 MiB, and one frame of what is kept for all");
        let trickle = take(2, 20 << 10).await.unwrap();
        assert!(trickle.is_some());
        assert!(take(2, 20 << 10).await.is_err(), "one frame of each");
        assert!(take(3, 20 << 10).await.is_ok() && take(4, 300 << 10).await.is_err(), "short ones");
        drop(trickle);
        assert!(take(2, 20 << 10).await.is_ok());
        assert!(take(2, UNCOUNTED_BYTES).await.unwrap().is_none(), "this one takes no room");
        let full = (256 << 10) + HEADER_BYTES;
        assert!(take(4, full).await.is_ok(), "what clients send by default, and its header");
        flood.clear();
        assert!(take(4, 64 << 20).await.is_ok(), "one that is longer than all is read alone");
    }

    #[tokio::test]
    async fn little_room_is_for_all_frames_alike() {
        for (bytes, takes_all) in [(1 << 20, true), (64 * UNCOUNTED_BYTES + (64 << 10), false)] {
            let room = Room::new(bytes);
            let take = |shuffle: u128, bytes: usize| {
                timeout(Duration::from_millis(20), room.take(Some(ShuffleId(shuffle)), bytes))
            };
            let held = take(1, bytes).await.unwrap();
            assert!(held.is_some());
            drop(held);
            let _flood = take(1, bytes - bytes / 8).await.unwrap();
            // Another frame of the same shuffle finds what is kept, if something is.
            let longest = UNCOUNTED_BYTES + (1 << 10);
            let _kept = take(1, longest).await.unwrap();
            assert_eq!(take(1, longest).await.is_ok(), takes_all, "{bytes}");
        }
    }
}
