//! Frames of the floor: a range, a length, a checksum, and records.

use std::io::{Error, ErrorKind, IoSlice, Read, Result, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Bytes of a frame, and of a chunk of a range, at most.
pub const FRAME_BYTES: usize = 256 << 10;
/// Bytes of a record, and of its key.
pub const RECORD_BYTES: usize = 100;
/// Records of a frame, and of a chunk.
pub const FRAME_RECORDS: usize = FRAME_BYTES / RECORD_BYTES;
/// Stands for a range where there are no more frames, and for the answer to that.
const END: u32 = u32::MAX;
const HEAD_BYTES: usize = 12;

/// The way between two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Over TCP on loopback.
    Tcp,
    /// Over a Unix socket.
    Unix,
}

impl Way {
    /// The word that names this way on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Way::Tcp => "tcp",
            Way::Unix => "unix",
        }
    }

    /// The way of that name.
    pub fn named(name: &str) -> Result<Way> {
        let found = [Way::Tcp, Way::Unix].into_iter().find(|way| way.name() == name);
        found.ok_or_else(|| Error::other(format!("{name:?} is no way: give tcp or unix")))
    }

    /// Connects to the node of that number.
    pub fn connect(self, nodes: &[String], folder: &Path, number: usize) -> Result<Socket> {
        match self {
            Way::Unix => UnixStream::connect(socket_of(folder, number)).map(Socket::Unix),
            Way::Tcp => {
                let stream = TcpStream::connect(&nodes[number])?;
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream))
            }
        }
    }
}

/// Where the node of that number listens as a Unix socket.
pub fn socket_of(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{number}.sock"))
}

/// A connection between two processes.
#[derive(Debug)]
pub enum Socket {
    /// It goes over TCP on loopback.
    Tcp(TcpStream),
    /// It goes over a Unix socket.
    Unix(UnixStream),
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(bytes),
            Socket::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Socket {
    /// Writes all of two pieces.
    pub fn put(&mut self, mut head: &[u8], mut body: &[u8]) -> Result<()> {
        while !head.is_empty() || !body.is_empty() {
            let slices = [IoSlice::new(head), IoSlice::new(body)];
            let written = match self {
                Socket::Tcp(stream) => stream.write_vectored(&slices),
                Socket::Unix(stream) => stream.write_vectored(&slices),
            };
            let written = match written {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                written => written?,
            };
            if written == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            let of_head = written.min(head.len());
            head = &head[of_head..];
            body = &body[written - of_head..];
        }
        Ok(())
    }

    /// Sends records of a range, whose checksum is known.
    pub fn send(&mut self, range: u32, sum: u32, records: &[u8]) -> Result<()> {
        let length = u32::try_from(records.len()).map_err(Error::other)?;
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&range.to_be_bytes());
        head[4..8].copy_from_slice(&length.to_be_bytes());
        head[8..].copy_from_slice(&sum.to_be_bytes());
        self.put(&head, records)
    }

    /// No more comes, or everything was done.
    pub fn send_end(&mut self) -> Result<()> {
        self.send(END, crc32c::crc32c(&[]), &[])
    }

    /// Receives records to the front of `into`, checks them, and gives their range, their checksum and how many bytes they have;
    /// none at the end.
    pub fn receive(&mut self, into: &mut [u8]) -> Result<Option<(u32, u32, usize)>> {
        let mut head = [0; HEAD_BYTES];
        self.read_exact(&mut head)?;
        let [r0, r1, r2, r3, l0, l1, l2, l3, s0, s1, s2, s3] = head;
        let (range, sum) = (u32::from_be_bytes([r0, r1, r2, r3]), u32::from_be_bytes([s0, s1, s2, s3]));
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        let room = into.get_mut(..length).ok_or_else(|| Error::other("a frame is too long"))?;
        self.read_exact(room)?;
        if crc32c::crc32c(room) != sum {
            return Err(Error::other("the checksum of a frame is wrong"));
        }
        Ok((range != END).then_some((range, sum, length)))
    }

    /// Waits for the other end to say that everything was done.
    pub fn receive_end(&mut self) -> Result<()> {
        match self.receive(&mut [])? {
            None => Ok(()),
            Some(_) => Err(Error::other("an end was expected")),
        }
    }
}
