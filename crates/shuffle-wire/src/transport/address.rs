//! Where a node listens: `host:port`, or `unix:` and the path of a socket.

use partage_dialer::Dialer;
use std::fmt;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// What stands before the path of a Unix socket.
const UNIX: &str = "unix:";

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// `host:port`; the host is looked up each time that it is dialled.
    Tcp(String),
    /// The path of a socket on this machine.
    Unix(PathBuf),
}

/// A text that is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address: give host:port, or unix: and a path")]
pub struct BadAddress(String);

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        let bad = || BadAddress(text.chars().take(300).collect());
        match text.strip_prefix(UNIX) {
            Some("") => Err(bad()),
            Some(path) => Ok(Address::Unix(path.into())),
            None => {
                let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
                let is_good = !host.is_empty() && port.parse::<u16>().is_ok();
                if is_good { Ok(Address::Tcp(text.to_owned())) } else { Err(bad()) }
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(at) => f.pad(at),
            Address::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// The half of a connection that is read, of TCP or of a Unix socket.
pub(super) type ReadHalf = Box<dyn AsyncRead + Send + Sync + Unpin>;
/// The half of a connection that is written to.
pub(super) type WriteHalf = Box<dyn AsyncWrite + Send + Sync + Unpin>;

pub(super) fn of_tcp(stream: TcpStream) -> (ReadHalf, WriteHalf) {
    let (read, write) = stream.into_split();
    (Box::new(read), Box::new(write))
}

fn of_unix(stream: UnixStream) -> (ReadHalf, WriteHalf) {
    let (read, write) = stream.into_split();
    (Box::new(read), Box::new(write))
}

impl Address {
    /// Opens a connection, as the dialer does to other nodes of the cluster.
    pub(super) async fn connect(&self) -> Result<(ReadHalf, WriteHalf), Error> {
        match self {
            Address::Tcp(at) => Ok(of_tcp(Dialer::PEER.tcp(at).await?)),
            Address::Unix(path) => Ok(of_unix(Dialer::PEER.unix(path).await?)),
        }
    }
}

/// A socket at which connections come in.
#[derive(Debug)]
pub enum Listener {
    /// A socket of TCP, on one port of one address.
    Tcp(TcpListener),
    /// A Unix socket, which only processes of this machine reach.
    Unix(UnixListener),
}

impl Listener {
    /// Listens there. A Unix socket that was left behind by a process that has ended is replaced; anything else that lies there
    /// is left as it is.
    ///
    /// # Errors
    /// Somebody else listens there, something else than a socket lies there, or it cannot be.
    pub async fn bind(address: &Address) -> Result<Listener, Error> {
        match address {
            Address::Tcp(at) => TcpListener::bind(at).await.map(Listener::Tcp),
            Address::Unix(path) => bind_unix(path).await.map(Listener::Unix),
        }
    }

    /// Where it listens: with the port that the system has given it.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> Result<Address, Error> {
        match self {
            Listener::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Listener::Unix(listener) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().ok_or_else(|| Error::other("a socket without a path"))?;
                Ok(Address::Unix(path.to_owned()))
            }
        }
    }

    pub(super) async fn accept(&self) -> Result<(ReadHalf, WriteHalf), Error> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Answers are short; waiting for more to send only delays them.
                stream.set_nodelay(true)?;
                Ok(of_tcp(stream))
            }
            Listener::Unix(listener) => Ok(of_unix(listener.accept().await?.0)),
        }
    }
}

/// Binds a Unix socket, in the place of one at which nobody listens any more.
async fn bind_unix(path: &Path) -> Result<UnixListener, Error> {
    let in_use = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => error,
        bound => return bound,
    };
    // Not of what a link leads to: only the link would go.
    let found = tokio::fs::symlink_metadata(path).await?;
    if !found.file_type().is_socket() {
        let why = format!("{} is no socket: remove it, or listen at another path", path.display());
        return Err(Error::new(ErrorKind::AlreadyExists, why));
    }
    match Dialer::PEER.unix(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            tokio::fs::remove_file(path).await?;
            UnixListener::bind(path)
        }
        _ => Err(Error::new(in_use.kind(), format!("another process listens at {}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    #[tokio::test]
    async fn only_a_socket_at_which_nobody_listens_is_replaced() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("node.sock");
        let at = Address::Unix(path.clone());
        drop(Listener::bind(&at).await.unwrap());
        assert!(path.exists(), "it is left behind");
        let bound = Listener::bind(&at).await.unwrap();
        let refused = Listener::bind(&at).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        assert!(refused.to_string().contains("node.sock"), "{refused}");
        drop(bound);
        let (file, link, inner) = ("file", "link", "folder");
        std::fs::write(folder.path().join(file), b"kept").unwrap();
        symlink(&path, folder.path().join(link)).unwrap();
        std::fs::create_dir(folder.path().join(inner)).unwrap();
        for name in [file, link, inner] {
            let path = folder.path().join(name);
            let refused = Listener::bind(&Address::Unix(path.clone())).await.unwrap_err();
            assert!(refused.to_string().contains(&format!("{name} is no socket")), "{refused}");
            assert!(path.symlink_metadata().is_ok(), "{name} stays");
        }
        assert_eq!(std::fs::read(folder.path().join(file)).unwrap(), b"kept");
    }

    #[test]
    fn addresses_are_read_as_they_are_printed() {
        for good in ["localhost:7000", "10.0.0.1:1", "[::1]:80", "unix:/run/p.sock"] {
            assert_eq!(good.parse::<Address>().unwrap().to_string(), good);
        }
        for bad in ["", "localhost", ":7000", "a:b", "a:70000", "unix:"] {
            assert_eq!(bad.parse::<Address>(), Err(BadAddress(bad.to_owned())));
        }
    }
}
