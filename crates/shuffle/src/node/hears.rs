//! Who waits for what the node says: a thread, or a task.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use tokio::sync::mpsc::Sender;

/// Hands something to the one who waits for it, and never waits: what does not fit is dropped, and asked for again. A copy
/// hands it to the same one.
pub(crate) struct Hears<T>(Arc<dyn Fn(T) + Send + Sync>);

impl<T> Hears<T> {
    pub(crate) fn tell(&self, what: T) {
        (self.0)(what);
    }
}

impl<T> Clone for Hears<T> {
    fn clone(&self) -> Hears<T> {
        Hears(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Hears<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hears").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> From<SyncSender<T>> for Hears<T> {
    fn from(sender: SyncSender<T>) -> Hears<T> {
        Hears(Arc::new(move |what| drop(sender.try_send(what))))
    }
}

impl<T: Send + 'static> From<Sender<T>> for Hears<T> {
    fn from(sender: Sender<T>) -> Hears<T> {
        Hears(Arc::new(move |what| drop(sender.try_send(what))))
    }
}
