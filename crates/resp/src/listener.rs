//! Takes connections.

use crate::connection;
use crate::limits;
use crate::session::{Session, Shared};
use crate::table::Tables;
use partage_door::{AcceptedConnection, Door, Ending, Role, Settings};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

/// Accepts connections of Redis clients, and serves each in a task of its own. Cheap to clone.
#[derive(Clone)]
pub struct Listener {
    door: Door,
    shared: Arc<Shared>,
}

impl Listener {
    /// A listener for these tables; `settings` say which clients may connect, and what they may cost.
    pub fn new(tables: Arc<dyn Tables>, settings: Settings) -> Listener {
        let role = Role {
            connections: limits::CONNECTIONS,
            idle: limits::IDLE,
            stalled: Some(limits::WRITE_TIME),
            write: limits::WRITE_TIME,
            ending: Ending::After(limits::CLOSING),
            ..Role::default()
        };
        Listener { door: Door::new(role, settings), shared: Arc::new(Shared::new(tables)) }
    }

    /// The admission control, with its counts.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Serves connections until `stop` is true or gone; then waits for the commands that are under way, but not for longer than
    /// [`limits::CLOSING`].
    pub async fn listen(self, listener: TcpListener, mut stop: watch::Receiver<bool>) {
        let under_way = Arc::new(Semaphore::new(limits::UNDER_WAY as usize));
        loop {
            let accepted = tokio::select! {
                accepted = self.door.accept(&listener) => accepted,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let Ok(permit) = under_way.clone().try_acquire_owned() else { continue };
            let (listener, stop) = (self.clone(), stop.clone());
            tokio::spawn(async move {
                listener.serve(accepted, stop).await;
                drop(permit);
            });
        }
        drop(listener);
        let _ = tokio::time::timeout(limits::CLOSING, under_way.acquire_many(limits::UNDER_WAY)).await;
    }

    async fn serve(&self, accepted: AcceptedConnection, mut stop: watch::Receiver<bool>) {
        let accepted = tokio::select! {
            accepted = self.door.wait_for_first_byte(accepted) => accepted,
            _ = stop.wait_for(|stop| *stop) => None,
        };
        let Some(accepted) = accepted else { return };
        let peer = accepted.peer;
        let local = accepted.stream.local_addr().map_or_else(|_| String::new(), |local| local.to_string());
        let session = Session::new(Arc::clone(&self.shared), peer, local);
        let served = connection::serve(&self.door, accepted, session, &self.shared.commands, stop).await;
        if let Err(error) = served {
            tracing::debug!(%peer, %error, "a connection broke");
        }
    }
}
