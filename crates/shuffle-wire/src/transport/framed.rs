//! Frames on the two directions of a connection.

use super::address::{ReadHalf, WriteHalf};
use crate::client::{Again, Refusal, RefusalWord};
use crate::frame::{Frame, HEADER_BYTES, Header, Sequence};
use crate::limits::{GATHERED_BYTES, PIECE_BYTES, ROOM_AT_ONCE};
use crate::malformed::FrameError;
use bytes::{BufMut, Bytes, BytesMut};
use std::io::{Error, ErrorKind, IoSlice};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

/// Small, so that of a body hardly anything is read into it: the rest goes where it stays.
const BUFFER_BYTES: usize = 4_096;
/// A body up to here is copied beside its header; a longer one is written from where it lies.
const SMALL_BYTES: usize = 16 << 10;

/// Why a connection has ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The other end has ended it, between two frames.
    #[error("the other end has closed the connection")]
    Ended,
    /// The other end says why.
    #[error("the other end has closed the connection: {0}")]
    Refused(Refusal),
    /// A frame is not taken.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// Nothing was heard.
    #[error("nothing was heard on the connection for {0:?}")]
    Silent(Duration),
    /// The other end takes nothing.
    #[error("the other end has taken nothing for {0:?}")]
    Stalled(Duration),
    /// The connection was in the middle of a frame when it was given up.
    #[error("the connection was given up in the middle of a frame")]
    Broken,
    /// It failed.
    #[error("the connection failed: {1}")]
    Failed(ErrorKind, String),
}

impl From<Error> for Closed {
    fn from(error: Error) -> Closed {
        Closed::Failed(error.kind(), error.to_string())
    }
}

impl Closed {
    /// What the other end is told; nothing when it has ended the connection itself, or it is gone.
    pub(super) fn goodbye(&self) -> Option<Refusal> {
        match self {
            Closed::Frame(why) => Some(why.into()),
            Closed::Refused(refusal) => Some(refusal.clone()),
            Closed::Silent(_) | Closed::Stalled(_) => {
                Some(Refusal::new(RefusalWord::ConnectionSilent, Again::Attempt, self))
            }
            Closed::Ended | Closed::Broken | Closed::Failed(..) => None,
        }
    }
}

/// The frames that come in.
pub(super) struct FrameReader {
    half: BufReader<ReadHalf>,
    sequence: Sequence,
    /// How long a byte may take.
    silent: Duration,
    /// A frame was begun and not ended: its reader was dropped.
    is_inside: bool,
}

impl FrameReader {
    pub(super) fn new(half: ReadHalf, silent: Duration) -> FrameReader {
        let half = BufReader::with_capacity(BUFFER_BYTES, half);
        FrameReader { half, sequence: Sequence::default(), silent, is_inside: false }
    }

    /// From now on a byte may take so long.
    pub(super) fn wait_for(&mut self, silent: Duration) {
        self.silent = silent;
    }

    /// The next frame; none: the other end has closed the connection behind the last one. If it is dropped before it is done, the
    /// connection is of no use any more.
    pub(super) async fn next(&mut self) -> Result<Option<Frame>, Closed> {
        if self.is_inside {
            return Err(Closed::Broken);
        }
        self.is_inside = true;
        let frame = self.read().await?;
        self.is_inside = false;
        Ok(frame)
    }

    async fn read(&mut self) -> Result<Option<Frame>, Closed> {
        let mut header = [0; HEADER_BYTES];
        let mut found = 0;
        while found < HEADER_BYTES {
            let read = self.half.read(&mut header[found..]);
            match timeout(self.silent, read).await.map_err(|_| Closed::Silent(self.silent))?? {
                0 if found == 0 => return Ok(None),
                0 => return Err(FrameError::Cut { found, expected: HEADER_BYTES }.into()),
                read => found += read,
            }
        }
        let header = Header::decode(&header)?;
        self.sequence.take(header.number)?;
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
            if timeout(self.silent, read).await.map_err(|_| Closed::Silent(self.silent))?? == 0 {
                let (found, expected) = (HEADER_BYTES + body.len(), HEADER_BYTES + bytes);
                return Err(FrameError::Cut { found, expected }.into());
            }
        }
        Ok(body.freeze())
    }

    /// Reads what still comes and forgets it, until the other end closes: else the system would cut the connection off, and with
    /// it the last words.
    pub(super) async fn drain(&mut self) {
        let mut forgotten = [0; BUFFER_BYTES];
        while self.half.read(&mut forgotten).await.is_ok_and(|read| read > 0) {}
    }
}

/// The frames that go out.
pub(super) struct FrameWriter {
    half: WriteHalf,
    number: u64,
    stalled: Duration,
    /// A frame was begun and not ended: its writer was dropped, or failed.
    is_inside: bool,
}

impl FrameWriter {
    pub(super) fn new(half: WriteHalf, stalled: Duration) -> FrameWriter {
        FrameWriter { half, number: 0, stalled, is_inside: false }
    }

    /// From now on the other end may take nothing for so long.
    pub(super) fn wait_for(&mut self, stalled: Duration) {
        self.stalled = stalled;
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
        while !head.is_empty() || !body.is_empty() {
            let piece = &body[..body.len().min(PIECE_BYTES)];
            let slices = [IoSlice::new(head), IoSlice::new(piece)];
            let write = self.half.write_vectored(&slices);
            let written = timeout(self.stalled, write).await.map_err(|_| Closed::Stalled(self.stalled))??;
            if written == 0 {
                return Err(Error::from(ErrorKind::WriteZero).into());
            }
            let of_head = written.min(head.len());
            head = &head[of_head..];
            body = &body[written - of_head..];
        }
        Ok(())
    }

    /// No more goes.
    pub(super) async fn end(&mut self) {
        // The other end may be gone.
        let _ = self.half.shutdown().await;
    }
}
