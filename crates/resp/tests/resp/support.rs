//! A listener, and a client that shows what comes.

use bytes::Bytes;
use partage_core::keyspace::sharding::PartitionKey;
use partage_resp::memory::MemoryTable;
use partage_resp::{Listener, OneTable, Table, Tables};
use resp_rs::ParseError;
use resp_rs::resp3::{Frame, parse_frame};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// How long a client waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A listener that runs until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    stop: watch::Sender<bool>,
    runtime: Option<Runtime>,
}

impl Server {
    pub fn start(tables: Arc<dyn Tables>) -> Server {
        Server::start_with(|_| tables)
    }

    /// The tables may want to know the address.
    pub fn start_with(tables: impl FnOnce(SocketAddr) -> Arc<dyn Tables>) -> Server {
        Server::start_in(partage_door::Settings::default(), tables)
    }

    /// With settings of the door.
    pub fn start_in(
        settings: partage_door::Settings,
        tables: impl FnOnce(SocketAddr) -> Arc<dyn Tables>,
    ) -> Server {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let socket = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = socket.local_addr().unwrap();
        let listener = Listener::new(tables(address), settings);
        let (stop, stopped) = watch::channel(false);
        runtime.spawn(listener.listen(socket, stopped));
        Server { address, stop, runtime: Some(runtime) }
    }

    pub fn of(table: Arc<dyn Table>) -> Server {
        Server::start(Arc::new(OneTable(table)))
    }

    pub fn in_memory(partition_key: PartitionKey) -> Server {
        Server::of(memory(partition_key))
    }

    pub fn client(&self) -> Client<TcpStream> {
        Client::new(connect(self.address))
    }

    pub fn port(&self) -> String {
        self.address.port().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

pub fn memory(partition_key: PartitionKey) -> Arc<MemoryTable> {
    Arc::new(MemoryTable::new(partition_key, partage_clock::unix_ms))
}

/// One table in memory, for a listener.
pub fn one(partition_key: PartitionKey) -> Arc<dyn Tables> {
    Arc::new(OneTable(memory(partition_key)))
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The bytes of a command.
pub fn encoded(command: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for argument in command {
        bytes.extend_from_slice(format!("${}\r\n", argument.as_ref().len()).as_bytes());
        bytes.extend_from_slice(argument.as_ref());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// A client that sends bytes, and reads frames with another library.
pub struct Client<S> {
    pub stream: S,
    read: Vec<u8>,
}

impl<S: Read + Write> Client<S> {
    pub fn new(stream: S) -> Client<S> {
        Client { stream, read: Vec::new() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next frame; none at the end of the connection.
    pub fn next(&mut self) -> Option<Frame> {
        loop {
            match parse_frame(Bytes::copy_from_slice(&self.read)) {
                Ok((frame, rest)) => {
                    let used = self.read.len() - rest.len();
                    self.read.drain(..used);
                    return Some(frame);
                }
                Err(ParseError::Incomplete) => {}
                Err(error) => panic!("no frame ({error}): {}", self.read.escape_ascii()),
            }
            let mut piece = vec![0; 64 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(read) => self.read.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    pub fn ask(&mut self, command: &[impl AsRef<[u8]>]) -> Frame {
        self.send(&encoded(command));
        self.next().expect("the connection ended")
    }

    /// A command in words, and what it is answered, as text.
    pub fn say(&mut self, command: &str) -> String {
        let words: Vec<&str> = command.split_whitespace().collect();
        shown(&self.ask(&words))
    }
}

/// A frame as a person would write it.
pub fn shown(frame: &Frame) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match frame {
        Frame::SimpleString(word) => format!("+{}", text(word)),
        Frame::Error(error) => format!("-{}", text(error)),
        Frame::Integer(number) => format!(":{number}"),
        Frame::BulkString(Some(bytes)) => text(bytes),
        Frame::BulkString(None) => "nil".to_owned(),
        Frame::Array(None) => "nil array".to_owned(),
        Frame::Null => "null".to_owned(),
        Frame::Array(Some(all)) => format!("[{}]", all.iter().map(shown).collect::<Vec<_>>().join(" ")),
        Frame::Map(pairs) => {
            let pair = |(key, value): &(Frame, Frame)| format!("{}={}", shown(key), shown(value));
            format!("{{{}}}", pairs.iter().map(pair).collect::<Vec<_>>().join(" "))
        }
        other => format!("{other:?}"),
    }
}
