//! Requests that came together, for keys of one version.
//!
//! Pipelined requests of one connection are answered as one batch. Keys that are here are looked for side by side; those
//! that are elsewhere are asked of peers side by side; answers go out in the order of the requests, from one version (D5).

use super::answer;
use super::fast_path::FastPathConnection;
use super::fetch::PeerRequest;
use super::lookup::{LookupResult, PendingLookup, prefetch};
use super::refusal::Refusal;
use super::request::KeyRequest;
use super::server::ThreadState;
use crate::catalogue::{Hop, Outcome, Place, Reading};
use crate::limits;
use bytes::Bytes;
use futures::future::join_all;
use http::Response;
use partage_engine::readonly::{Losses, Value};
use std::collections::VecDeque;

/// Answers requests for keys of the version that the first of them is for.
pub async fn answer<'k>(
    thread: &ThreadState,
    connection: &mut FastPathConnection,
    requests: impl Iterator<Item = &'k KeyRequest<'k>> + Clone,
) -> std::io::Result<()> {
    let Some(first) = requests.clone().next() else { return Ok(()) };
    let server = &thread.server;
    let began = server.clock.nanos();
    let reading = match server.open(first.dataset, first.by_peer.as_deref(), first.wants.at_least, began) {
        Ok(reading) => reading,
        Err(refusal) => {
            let (refused, date) = (answer::refused(&refusal), server.date());
            requests.for_each(|request| {
                answer::write(&mut connection.out, &refused, request.is_head, date.as_bytes())
            });
            return Ok(());
        }
    };
    let places = reading.places();
    let mut lookups: Vec<PendingLookup<'_, '_>> =
        requests.clone().map(|request| PendingLookup::begin(&reading, &places, &request.key)).collect();
    if lookups.len() > 1 {
        prefetch(&mut lookups);
    }
    let hop = if first.by_peer.is_some() { Hop::Peer } else { Hop::Here };
    let mut batch =
        RequestBatch { thread, reading: &reading, places: &places, hop, began, tally: Default::default() };
    let mut fetched = VecDeque::new();
    for (number, (request, lookup)) in requests.clone().zip(&lookups).enumerate() {
        if let Some(columns) = lookup.lacks(&reading) {
            let refused = answer::refused(&Refusal::not_that_many_columns(request.dataset, columns));
            answer::write(&mut connection.out, &refused, request.is_head, server.date().as_bytes());
            continue;
        }
        let losses = Losses::from_now();
        match lookup.end(&reading, &places) {
            LookupResult::Value(value) => {
                batch.found(&mut connection.out, request, value);
                if losses.have_been() {
                    return Err(lost());
                }
            }
            LookupResult::Absent => batch.absent(&mut connection.out, request),
            LookupResult::Elsewhere(partition) if hop == Hop::Peer => {
                batch.not_here(&mut connection.out, request, partition);
            }
            LookupResult::Elsewhere(partition) => {
                if fetched.front().is_none_or(|(of, _)| *of != number) {
                    let rest = requests.clone().zip(&lookups).enumerate().skip(number + 1);
                    let rest = rest.filter_map(|(number, (request, next))| {
                        Some((
                            number,
                            request,
                            next.elsewhere(&reading, &places).filter(|_| next.lacks(&reading).is_none())?,
                        ))
                    });
                    // One that turned out to be damaged here is asked for alone, before those that are there already.
                    let more = if fetched.is_empty() { limits::SIDE_BY_SIDE - 1 } else { 0 };
                    let wanted = std::iter::once((number, request, partition)).chain(rest.take(more));
                    let answers = batch.fetch(wanted).await;
                    answers.into_iter().rev().for_each(|answer| fetched.push_front(answer));
                }
                if let Some((_, response)) = fetched.pop_front() {
                    answer::write(&mut connection.out, &response, request.is_head, server.date().as_bytes());
                }
            }
        }
        connection.write_if_long().await?;
    }
    Ok(())
}

/// A store file lost bytes while a value was copied from one: nothing that has not been sent may be. The client asks again
/// over another connection.
fn lost() -> std::io::Error {
    std::io::Error::other("a store file lost some of its bytes while it was read")
}

struct RequestBatch<'a> {
    thread: &'a ThreadState,
    reading: &'a Reading,
    places: &'a [Place],
    hop: Hop,
    began: u64,
    /// Requests and bytes that were found, and that were not.
    tally: [(u64, u64); 2],
}

impl RequestBatch<'_> {
    fn found(&mut self, out: &mut Vec<u8>, request: &KeyRequest<'_>, value: Value<'_>) {
        self.tally[Outcome::Found as usize].0 += 1;
        self.tally[Outcome::Found as usize].1 += value.len() as u64;
        let (reading, date) = (self.reading, self.thread.server.date());
        let head = || answer::head_of(reading);
        if answer::is_plain(&request.wants, value.len()) && !reading.is_by_order() {
            let head = reading.plain_head(|| answer::plain_head(&head()));
            answer::write_plain(out, head, &value, request.is_head, date.as_bytes());
        } else {
            let response = answer::found(&head(), value, &request.wants);
            answer::write(out, &response, request.is_head, date.as_bytes());
        }
    }

    fn absent(&mut self, out: &mut Vec<u8>, request: &KeyRequest<'_>) {
        self.tally[Outcome::Absent as usize].0 += 1;
        let response = answer::absent(self.reading);
        answer::write(out, &response, request.is_head, self.thread.server.date().as_bytes());
    }

    /// A peer asks for what only others have.
    fn not_here(&self, out: &mut Vec<u8>, request: &KeyRequest<'_>, partition: u32) {
        let refusal = Refusal::not_that_partition(request.dataset, self.reading.name().as_str(), partition);
        self.reading.meter().count(Outcome::Failed, Hop::Peer, 0, 1, 0);
        answer::write(out, &answer::refused(&refusal), request.is_head, self.thread.server.date().as_bytes());
    }

    /// Asks peers for several keys side by side; each answer with its number.
    async fn fetch<'k>(
        &mut self,
        wanted: impl Iterator<Item = (usize, &'k KeyRequest<'k>, u32)>,
    ) -> Vec<(usize, Response<Bytes>)> {
        // What was answered so far has not waited for peers.
        self.settle();
        let (thread, reading, places, began) = (self.thread, self.reading, self.places, self.began);
        let asked = wanted.map(|(number, request, partition)| async move {
            let peer_request = |version: &str| PeerRequest::key(request, version);
            (number, thread.proxied(reading, places, partition, began, peer_request).await)
        });
        join_all(asked).await
    }

    /// Counts what was answered here so far.
    fn settle(&mut self) {
        let nanos = self.thread.server.clock.nanos().saturating_sub(self.began);
        for (outcome, (requests, bytes)) in [Outcome::Found, Outcome::Absent].into_iter().zip(self.tally) {
            if requests > 0 {
                self.reading.meter().count_many(outcome, self.hop, nanos, requests, bytes);
            }
        }
        self.tally = Default::default();
    }
}

impl Drop for RequestBatch<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}
