//! How messages of the protocol travel: over UDP, behind the keys of the cluster if there are any.
//!
//! The library converts messages to bytes and back in its own socket only. So that socket is on loopback, and our own
//! socket is on the network:
//!
//! ```text
//! chitchat ──► its socket ──► injector ──► sealed ──► our socket ──► network
//! chitchat ◄── its socket ◄── injector ◄── opened ◄── our socket ◄── network
//!                         ◄── mark: what was injected has been read, be it understood or not
//! ```
//!
//! The mark is a message of the protocol that another socket injects behind each datagram. If it comes out alone, the
//! library did not understand the datagram: so the transport counts that, without a time-out.

use std::io::{Error, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use chitchat::transport::{RecvOutcome, SendOutcome, Socket, Transport};
use chitchat::{ChitchatEnvelope, ChitchatMessage, ProtocolVersion};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::timeout;

use super::keys::Keys;
use super::refused::{Reason, RefusalReporter, Refused};
use super::seal::{DATAGRAM_BYTES, Opener, Sealer, is_sealed};

/// Longer than a datagram is on its way on loopback.
const PIPE_TIMEOUT: Duration = Duration::from_secs(1);

/// How the library sends and receives: over UDP, with the newest keys of the file.
pub(super) struct SealedTransport {
    /// The root, which names the cluster: datagrams of another cluster with the same keys are refused.
    pub cluster: String,
    /// A number of this run of this process.
    pub sender: u128,
    /// The newest keys of the file. None: datagrams go in the clear.
    pub keys: Option<watch::Receiver<Keys>>,
    /// Shared with the handle, which reports the counts.
    pub refused: Arc<Refused>,
}

#[async_trait]
impl Transport for SealedTransport {
    async fn open(&self, listen: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let outside =
            UdpSocket::bind(listen).await.with_context(|| format!("gossip cannot listen at {listen}/UDP"))?;
        Ok(Box::new(SealedSocket {
            outside,
            inside: Pipe::open().await.context("a pipe on loopback")?,
            codec: DatagramCodec {
                keys: self.keys.clone(),
                sealer: Sealer::new(self.cluster.clone(), self.sender),
                opener: Opener::new(self.cluster.clone()),
                refused: Arc::clone(&self.refused),
                reporter: RefusalReporter::default(),
            },
            received: vec![0; DATAGRAM_BYTES + 1],
            injected: None,
        }))
    }
}

/// The library's own socket, and our sockets to it.
struct Pipe {
    library: chitchat::transport::UdpSocket,
    library_at: SocketAddr,
    injector: UdpSocket,
    injector_at: SocketAddr,
    mark: UdpSocket,
    mark_at: SocketAddr,
    /// A message as bytes.
    marking: Vec<u8>,
    written: Vec<u8>,
}

impl Pipe {
    async fn open() -> anyhow::Result<Pipe> {
        let injector = loopback().await?;
        let mut at = injector.local_addr()?;
        at.set_port(0);
        let mark = UdpSocket::bind(at).await?;
        let library = chitchat::transport::UdpSocket::open(at).await?;
        let (library_at, injector_at, mark_at) =
            (library.local_addr()?, injector.local_addr()?, mark.local_addr()?);
        let written = vec![0; DATAGRAM_BYTES];
        let mut pipe =
            Pipe { library, library_at, injector, injector_at, mark, mark_at, marking: Vec::new(), written };
        let message = ChitchatMessage::BadCluster;
        pipe.marking = pipe.write(ChitchatEnvelope { version: ProtocolVersion::V0, message }).await?.to_vec();
        Ok(pipe)
    }

    /// A message as bytes.
    async fn write(&mut self, envelope: ChitchatEnvelope) -> anyhow::Result<&[u8]> {
        self.library.send(self.injector_at, envelope).await?;
        loop {
            let (length, from) = timeout(PIPE_TIMEOUT, self.injector.recv_from(&mut self.written)).await??;
            if from == self.library_at {
                return Ok(&self.written[..length]);
            }
        }
    }

    /// Injects bytes, to be read by [`Pipe::read`].
    async fn inject(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        // What is left of an earlier mark does not belong to this one.
        loop {
            tokio::select! {
                biased;
                left = self.library.recv() => drop(left?),
                () = std::future::ready(()) => break,
            }
        }
        self.injector.send_to(bytes, self.library_at).await?;
        self.remark().await
    }

    async fn remark(&self) -> anyhow::Result<()> {
        self.mark.send_to(&self.marking, self.library_at).await?;
        Ok(())
    }
}

async fn loopback() -> std::io::Result<UdpSocket> {
    match UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await {
        Err(_) => UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).await,
        there => there,
    }
}

struct DatagramCodec {
    keys: Option<watch::Receiver<Keys>>,
    sealer: Sealer,
    opener: Opener,
    refused: Arc<Refused>,
    reporter: RefusalReporter,
}

impl DatagramCodec {
    fn seal(&mut self, said: &[u8]) -> Vec<Vec<u8>> {
        match &self.keys {
            None => vec![said.to_vec()],
            Some(keys) => self.sealer.seal(&keys.borrow(), said, partage_clock::unix_ms()),
        }
    }

    fn open(&mut self, datagram: &[u8], from: SocketAddr) -> Option<Vec<u8>> {
        let opened = match &self.keys {
            None if is_sealed(datagram) => Err(Reason::Sealed),
            None => Ok(Some(datagram.to_vec())),
            Some(keys) => self.opener.open(&keys.borrow(), datagram, partage_clock::unix_ms()),
        };
        opened.unwrap_or_else(|reason| {
            self.refuse(reason, from);
            None
        })
    }

    fn refuse(&mut self, reason: Reason, from: SocketAddr) {
        self.reporter.refuse(&self.refused, reason, from);
    }
}

/// The UDP socket of gossip, which seals what is sent and opens what arrives if the cluster has keys.
struct SealedSocket {
    outside: UdpSocket,
    inside: Pipe,
    codec: DatagramCodec,
    received: Vec<u8>,
    /// The injected datagram: its sender, its length, and its message once the library has read it.
    injected: Option<(SocketAddr, usize, Option<ChitchatEnvelope>)>,
}

#[async_trait]
impl Socket for SealedSocket {
    fn local_addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.outside.local_addr()?)
    }

    async fn send(&mut self, to: SocketAddr, envelope: ChitchatEnvelope) -> anyhow::Result<SendOutcome> {
        let said = self.inside.write(envelope).await?;
        let mut num_bytes_sent = 0;
        for datagram in self.codec.seal(said) {
            let sent = self.outside.send_to(&datagram, to).await;
            num_bytes_sent += sent.with_context(|| format!("gossip to {to}"))?;
        }
        Ok(SendOutcome { num_bytes_sent })
    }

    /// Cancel-safe: the next call goes on where this one was.
    async fn recv(&mut self) -> anyhow::Result<RecvOutcome> {
        if self.injected.is_some() {
            // The mark may have been lost, if somebody on this machine fills the pipe.
            self.inside.remark().await?;
        }
        loop {
            while let Some((from_addr, num_bytes_received, _)) = self.injected {
                let out = self.inside.library.recv().await?;
                if out.from_addr == self.inside.injector_at
                    && let Some((.., envelope)) = &mut self.injected
                {
                    *envelope = Some(out.envelope);
                } else if out.from_addr == self.inside.mark_at {
                    match self.injected.take() {
                        Some((.., Some(envelope))) => {
                            return Ok(RecvOutcome { from_addr, envelope, num_bytes_received });
                        }
                        _ => self.codec.refuse(Reason::Strange, from_addr),
                    }
                }
            }
            let (length, from) = match self.outside.recv_from(&mut self.received).await {
                Ok(received) => received,
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(error).context("gossip cannot receive any more"),
            };
            if let Some(said) = self.codec.open(&self.received[..length], from) {
                self.injected = Some((from, length, None));
                self.inside.inject(&said).await?;
            }
        }
    }
}

/// Whether the socket still works.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "6f1c5d0a9b8e7f60112233445566778899aabbccddeeff00a1b2c3d4e5f60718";

    struct TestPeer {
        socket: Box<dyn Socket>,
        at: SocketAddr,
        refused: Arc<Refused>,
    }

    impl TestPeer {
        async fn open(sender: u128, keys: Option<&str>) -> TestPeer {
            let refused = Arc::<Refused>::default();
            let keys = keys.map(|text| watch::Sender::new(Keys::parse(text).unwrap()).subscribe());
            let transport =
                SealedTransport { cluster: "one".to_owned(), sender, keys, refused: refused.clone() };
            let socket = transport.open("127.0.0.1:0".parse().unwrap()).await.unwrap();
            TestPeer { at: socket.local_addr().unwrap(), socket, refused }
        }

        fn counts(&self, reason: Reason) -> u64 {
            self.refused.counts().find(|(found, _)| *found == reason).unwrap().1
        }
    }

    fn envelope() -> ChitchatEnvelope {
        ChitchatEnvelope { version: ProtocolVersion::V1, message: ChitchatMessage::BadCluster }
    }

    #[tokio::test]
    async fn messages_go_through_with_a_key_and_without() {
        for keys in [None, Some(KEY)] {
            let (mut one, mut two) = (TestPeer::open(1, keys).await, TestPeer::open(2, keys).await);
            for _ in 0..20 {
                one.socket.send(two.at, envelope()).await.unwrap();
                let heard = two.socket.recv().await.unwrap();
                assert_eq!((heard.from_addr, heard.envelope), (one.at, envelope()));
                two.socket.send(one.at, envelope()).await.unwrap();
                assert_eq!(one.socket.recv().await.unwrap().from_addr, two.at);
            }
        }
    }

    #[tokio::test]
    async fn what_is_not_understood_is_counted_and_what_comes_behind_it_is_heard() {
        let (mut one, mut two) = (TestPeer::open(1, None).await, TestPeer::open(2, None).await);
        let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        for garbage in [&b""[..], b"x", b"\x53\xb0\x01", b"\x53\xb0\x01\x00 and more", b"PGS1 and more"] {
            stranger.send_to(garbage, two.at).await.unwrap();
        }
        one.socket.send(two.at, envelope()).await.unwrap();
        assert_eq!(two.socket.recv().await.unwrap().from_addr, one.at);
        assert_eq!((two.counts(Reason::Strange), two.counts(Reason::Sealed)), (4, 1));
    }

    #[tokio::test]
    async fn a_receive_that_is_dropped_loses_nothing() {
        let (mut one, mut two) = (TestPeer::open(1, Some(KEY)).await, TestPeer::open(2, Some(KEY)).await);
        for _ in 0..50 {
            one.socket.send(two.at, envelope()).await.unwrap();
        }
        let mut heard = 0;
        while heard < 50 {
            // Dropped wherever it waits first, and begun again.
            tokio::select! {
                biased;
                got = two.socket.recv() => {
                    got.unwrap();
                    heard += 1;
                }
                () = tokio::task::yield_now() => {}
            }
        }
        assert_eq!(two.counts(Reason::Strange), 0);
    }

    #[tokio::test]
    async fn z5_who_has_no_key_is_not_heard() {
        let (mut one, mut two) = (TestPeer::open(1, Some(KEY)).await, TestPeer::open(2, Some(KEY)).await);
        let mut clear = TestPeer::open(3, None).await;
        clear.socket.send(two.at, envelope()).await.unwrap();
        one.socket.send(clear.at, envelope()).await.unwrap();
        one.socket.send(two.at, envelope()).await.unwrap();
        assert_eq!(two.socket.recv().await.unwrap().from_addr, one.at);
        assert_eq!(two.counts(Reason::Unsealed), 1);
        two.socket.send(clear.at, envelope()).await.unwrap();
        let fourth = TestPeer::open(4, None).await;
        let mut fourth_socket = fourth.socket;
        fourth_socket.send(clear.at, envelope()).await.unwrap();
        assert_eq!(clear.socket.recv().await.unwrap().from_addr, fourth.at);
        assert_eq!(clear.counts(Reason::Sealed), 2);
    }
}
