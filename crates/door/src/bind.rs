//! Listeners at addresses that a process may still have which was killed a moment ago.

use crate::limits;
use std::io;
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::time::{Instant, sleep};

/// Listens there. A process that was killed has its address until the system has taken its memory back, which takes a while where
/// it had much: so an address in use is tried again, for up to [`limits::ADDRESS_TIME`].
///
/// # Errors
/// The system does not let it listen there.
pub async fn bind(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let until = Instant::now() + limits::ADDRESS_TIME;
    loop {
        match TcpListener::bind(&address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                sleep(limits::ADDRESS_LOOK).await;
            }
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_is_waited_for_and_not_for_ever() {
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = other.local_addr().unwrap();
        let began = Instant::now();
        assert_eq!(bind(at).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(began.elapsed() >= limits::ADDRESS_TIME);
        let waiting = tokio::spawn(bind(at));
        sleep(limits::ADDRESS_LOOK * 3).await;
        drop(other);
        assert_eq!(waiting.await.unwrap().unwrap().local_addr().unwrap(), at);
    }
}
