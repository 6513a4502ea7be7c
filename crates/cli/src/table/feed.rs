//! `partage table feed`: the changes of a table, page by page.

use super::nodes::{PATIENCE, REST, TableNodes, refusal};
use super::scan::text_of;
use crate::http::segment;
use crate::output::{Failure, Output, say};
use clap::Args;
use hyper::StatusCode;
use partage_wire::table::{ChangeVerb, FeedPage};
use tokio::time::{Instant, sleep};

/// Changes on one page: as many as a node gives.
const PAGE: u64 = 1_000;

/// How long a node waits where there are no changes: less than the command waits for an answer.
const WAIT_MS: u64 = 20_000;

/// The arguments of `partage table feed`.
#[derive(Debug, Args)]
pub struct FeedArgs {
    /// Name of the table
    table: String,
    /// List changes behind this token, which an earlier run has printed; now = only changes to come [default: all that are kept]
    #[arg(long, value_name = "TOKEN")]
    after: Option<String>,
    /// Go on when all changes are listed that there were at the start, and list new ones as they are made
    #[arg(long)]
    follow: bool,
    /// Maximum number of changes to list [default: no limit]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// List only changes of this shard
    #[arg(long, value_name = "SHARD")]
    shard: Option<u64>,
    #[command(flatten)]
    nodes: TableNodes,
}

/// How far a reader of the feed is.
struct Place {
    after: Option<String>,
    /// Of a reader that does not follow: which parts of the table it has not read to their end; none: it has all.
    left: Option<String>,
}

impl FeedArgs {
    async fn page(&self, most: u64, place: &Place, waits: bool) -> Result<FeedPage, Failure> {
        let mut path = format!("/v1/tables/{}/feed?limit={}", segment(&self.table), most.min(PAGE));
        path.extend(place.after.iter().map(|after| format!("&after={}", segment(after))));
        path.extend(place.left.iter().map(|left| format!("&left={}", segment(left))));
        path.extend(self.shard.iter().map(|shard| format!("&shard={shard}")));
        if waits {
            path += &format!("&wait_ms={WAIT_MS}");
        }
        let reply = self.nodes.get(&path).await?;
        if reply.status != StatusCode::OK {
            return Err(refusal(&self.table, &reply));
        }
        serde_json::from_slice(&reply.body)
            .map_err(|error| Failure::failed(format!("the answer of the node is not understood: {error}")))
    }

    /// A page; one that follows asks again for a while when no node answers.
    async fn next(&self, most: u64, place: &Place, waits: bool) -> Result<FeedPage, Failure> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.page(most, place, waits).await {
                Err(why) if self.follow && why.is_not_reachable() && Instant::now() < until => {}
                other => return other,
            }
            sleep(REST).await;
        }
    }

    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let (mut most, mut waits) = (self.limit.unwrap_or(u64::MAX), false);
        let left = (!self.follow).then(|| "all".to_owned());
        let mut place = Place { after: self.after.clone(), left };
        while most > 0 && !output.is_broken() {
            let mut page = self.next(most, &place, waits).await?;
            let left = page.left.take();
            print(&page, output)?;
            most = most.saturating_sub(page.changes.len() as u64);
            let is_first_of_now = place.after.as_deref() == Some("now");
            place = Place { after: Some(page.next), left };
            if place.left.is_none() && !self.follow {
                break;
            }
            waits = self.follow && (page.changes.is_empty() || is_first_of_now || waits);
        }
        if let Some(after) = place.after.filter(|_| !output.is_json()) {
            say(&format!("to go on: --after {after}"));
        }
        Ok(())
    }
}

/// In JSON each page is one line, with its token. A page without changes is not printed for people.
fn print(page: &FeedPage, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        output.json(page)?;
    } else {
        for change in &page.changes {
            let key = text_of(&change.key);
            output.text(&match (change.change, &change.value) {
                (_, Some(value)) => format!("put\t{key}\t{}", text_of(value)),
                (ChangeVerb::Expired, None) => format!("expired\t{key}"),
                (ChangeVerb::Put | ChangeVerb::Delete, None) => format!("delete\t{key}"),
            });
        }
    }
    output.flush();
    Ok(())
}
