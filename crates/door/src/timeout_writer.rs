//! Writing to a client that may not read.
//!
//! hyper waits for ever until a client reads its answer. This waits for a while, and then fails.

use std::io::{Error, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::AsyncWrite;
use tokio::time::Sleep;

/// A writer that fails when the client reads nothing for `timeout`.
#[derive(Debug)]
pub struct TimeoutWriter<W> {
    inner: W,
    timeout: Duration,
    /// The end of the time-out, while a write waits for the client.
    until: Option<Pin<Box<Sleep>>>,
}

impl<W> TimeoutWriter<W> {
    pub fn new(inner: W, timeout: Duration) -> TimeoutWriter<W> {
        TimeoutWriter { inner, timeout, until: None }
    }

    fn watch<T>(
        &mut self,
        polled: Poll<std::io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<T>> {
        if polled.is_ready() {
            self.until = None;
            return polled;
        }
        let timeout = self.timeout;
        let until = self.until.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(until.as_mut().poll(context));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client takes nothing of what is written to it")))
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for TimeoutWriter<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(context, parts);
        self.watch(polled, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(context);
        self.watch(polled, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn in_a_runtime<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(work)
    }

    #[test]
    fn who_takes_nothing_is_given_up_and_who_takes_some_is_not() {
        in_a_runtime(async {
            let (write, mut read) = tokio::io::duplex(10);
            let mut write = TimeoutWriter::new(write, Duration::from_millis(20));
            let taken = tokio::spawn(async move {
                let mut all = vec![0; 100];
                read.read_exact(&mut all).await.unwrap();
                (all, read)
            });
            write.write_all(&[7; 100]).await.unwrap();
            let (all, read) = taken.await.unwrap();
            assert_eq!(all, [7; 100]);
            let error = write.write_all(&[7; 100]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            drop(read);
        });
    }
}
