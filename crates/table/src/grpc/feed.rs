//! A feed: a stream of pages of changes. Each is read when the client has taken the one before, so memory holds one page of each
//! stream, and nothing is left of a stream whose client goes.

use super::{answer, status};
use crate::feed::{EndsLeft, FeedRequest, FeedStart, Feeds};
use crate::service::{Refusal, Refused};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use partage_wire::proto::table as proto;
use std::time::Duration;
use tokio::sync::watch;
use tonic::Status;

/// What a client wants, and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Feed {
    /// The next page. The first one does not wait.
    pub(super) asked: FeedRequest,
    /// Changes of one page, at most.
    pub(super) page_changes: usize,
    /// Changes of the pages to come, at most.
    pub(super) left: u64,
    /// How long a page waits for changes behind the first one.
    pub(super) idle: Duration,
    /// What is to be read to its end; none: the client follows.
    pub(super) ends: Option<EndsLeft>,
}

impl Feed {
    /// Reads the next page, and says what follows on it.
    async fn page(mut self, feeds: &Feeds) -> Result<(proto::FeedPage, Option<Feed>), Status> {
        self.asked.most = usize::try_from(self.left).unwrap_or(usize::MAX).min(self.page_changes);
        let page = feeds.page(&self.asked).await.map_err(|why| status::of(&why.into()))?;
        let ends = self.ends.as_ref().map(|ends| ends.after(&page));
        let is_at_end = matches!(ends, Some(None));
        self.ends = ends.flatten().map(EndsLeft::Of);
        self.left = self.left.saturating_sub(page.changes.len() as u64);
        self.asked.start = FeedStart::After(page.next.clone());
        self.asked.wait = self.idle;
        let goes_on = !is_at_end && self.left > 0;
        Ok((answer::changes(page), goes_on.then_some(self)))
    }
}

/// The pages, until the client has what it wants or the node stops.
pub(super) fn pages(
    feeds: Feeds,
    closed: watch::Receiver<bool>,
    feed: Feed,
) -> BoxStream<'static, Result<proto::FeedPage, Status>> {
    let held = feeds.stream();
    let pages = stream::try_unfold(Some(feed), move |feed| {
        let _held = &held;
        let (feeds, closed) = (feeds.clone(), closed.clone());
        async move {
            let Some(feed) = feed else { return Ok(None) };
            tokio::select! {
                page = feed.page(&feeds) => page.map(Some),
                () = is_closed(closed) => Err(status::of(&stops().into())),
            }
        }
    });
    pages.boxed()
}

async fn is_closed(mut closed: watch::Receiver<bool>) {
    // A node that has ended by itself has no sender any more: that counts as closed.
    let _ = closed.wait_for(|closed| *closed).await;
}

fn stops() -> Refused {
    Refused::new(Refusal::Stopped, "the node stops: go on at another one, behind the last page")
}
