//! Takes connections from a listener.

use crate::connection::{AcceptedConnection, Service, TowerService, is_over};
use crate::limits;
use crate::refusal::Reason;
use crate::{Door, Ending};
use bytes::Bytes;
use std::pin::Pin;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

impl Door {
    /// The next connection, before its first byte: see [`Door::wait_for_first_byte`].
    pub async fn accept(&self, listener: &TcpListener) -> AcceptedConnection {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    if let Ok(accepted) = self.arrived(stream, peer) {
                        return accepted;
                    }
                }
                Err(error) => {
                    self.counts()
                        .refused(Reason::Files, &format_args!("a connection was not accepted: {error}"));
                    self.displace();
                    tokio::time::sleep(limits::ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn arrived(&self, stream: TcpStream, peer: std::net::SocketAddr) -> std::io::Result<AcceptedConnection> {
        let (permit, displaces) = self.enter(peer.ip());
        if displaces {
            let what = "many connections say nothing: the oldest of them was closed";
            self.counts().refused(Reason::Displaced, &what);
        }
        // Messages are small, so Nagle's algorithm only delays them.
        stream.set_nodelay(true)?;
        AcceptedConnection::new(stream, peer, permit)
    }

    /// Serves connections until `stop` is true or gone.
    pub fn listen(
        &self,
        listener: TcpListener,
        service: TowerService,
        stop: watch::Receiver<bool>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let door = self.clone();
        // Boxed here: the compiler makes the code of a future where it is first polled or boxed, and so in each crate that
        // awaits an `async fn`.
        Box::pin(async move { door.listen_with(listener, |_| service.clone(), stop).await })
    }

    /// The same, with a service for each connection.
    pub async fn listen_with<S: Service>(
        &self,
        listener: TcpListener,
        service: impl Fn(&AcceptedConnection) -> S,
        mut stop: watch::Receiver<bool>,
    ) {
        let under_way = Arc::new(Semaphore::new(limits::UNDER_WAY as usize));
        loop {
            let accepted = tokio::select! {
                accepted = self.accept(&listener) => accepted,
                () = is_over(&mut stop) => break,
            };
            let Ok(permit) = under_way.clone().try_acquire_owned() else { continue };
            let (door, service, mut stopped) = (self.clone(), service(&accepted), stop.clone());
            tokio::spawn(async move {
                let accepted = tokio::select! {
                    accepted = door.wait_for_first_byte(accepted) => accepted,
                    () = is_over(&mut stopped) => None,
                };
                if let Some(accepted) = accepted {
                    let peer = accepted.peer;
                    if let Err(error) = door.serve(accepted, Bytes::new(), service, stopped).await {
                        tracing::debug!(%peer, %error, "a connection broke");
                    }
                }
                drop(permit);
            });
        }
        drop(listener);
        if let Ending::After(most) = self.role().ending {
            let _ = tokio::time::timeout(most, under_way.acquire_many(limits::UNDER_WAY)).await;
        }
    }
}
