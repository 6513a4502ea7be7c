//! Requests that came together, for keys of one version.
//!
//! A waiter with a tray: what several guests of a table have ordered is fetched on one walk, and put down in the order in
//! which they sit. Keys that are here are looked for side by side; those that are elsewhere are asked of peers
//! side by side; answers go out in the order of the requests, from one version (D5).

use super::answer;
use super::ask::Ask;
use super::fetch::Errand;
use super::lookup::{Look, Looked, look_ahead};
use super::quick::Line;
use super::refusal::Refusal;
use super::server::Desk;
use crate::catalogue::{Hop, Outcome, Place, Reading};
use crate::limits;
use bytes::Bytes;
use futures::future::join_all;
use http::Response;
use partage_engine::readonly::{Losses, Value};
use std::collections::VecDeque;

/// Answers requests for keys of the version that the first of them is for.
pub async fn answer<'k>(
    desk: &Desk,
    line: &mut Line,
    asks: impl Iterator<Item = &'k Ask<'k>> + Clone,
) -> std::io::Result<()> {
    let Some(first) = asks.clone().next() else { return Ok(()) };
    let began = desk.house.clock.nanos();
    let reading = match desk.house.open(first.dataset, first.by_peer.as_deref(), first.wants.at_least, began)
    {
        Ok(reading) => reading,
        Err(refusal) => {
            let (refused, date) = (answer::refused(&refusal), desk.house.date());
            asks.for_each(|ask| answer::write(&mut line.out, &refused, ask.is_head, date.as_bytes()));
            return Ok(());
        }
    };
    let places = reading.places();
    let mut looks: Vec<Look<'_, '_>> =
        asks.clone().map(|ask| Look::begin(&reading, &places, &ask.key)).collect();
    if looks.len() > 1 {
        look_ahead(&mut looks);
    }
    let hop = if first.by_peer.is_some() { Hop::Peer } else { Hop::Here };
    let mut round = Round { desk, reading: &reading, places: &places, hop, began, tally: Default::default() };
    let mut fetched = VecDeque::new();
    for (number, (ask, look)) in asks.clone().zip(&looks).enumerate() {
        if let Some(columns) = look.lacks(&reading) {
            let refused = answer::refused(&Refusal::not_that_many_columns(ask.dataset, columns));
            answer::write(&mut line.out, &refused, ask.is_head, desk.house.date().as_bytes());
            continue;
        }
        let losses = Losses::from_now();
        match look.end(&reading, &places) {
            Looked::Value(value) => {
                round.found(&mut line.out, ask, value);
                if losses.have_been() {
                    return Err(lost());
                }
            }
            Looked::Absent => round.absent(&mut line.out, ask),
            Looked::Elsewhere(partition) if hop == Hop::Peer => {
                round.not_here(&mut line.out, ask, partition);
            }
            Looked::Elsewhere(partition) => {
                if fetched.front().is_none_or(|(of, _)| *of != number) {
                    let rest = asks.clone().zip(&looks).enumerate().skip(number + 1);
                    let rest = rest.filter_map(|(number, (ask, look))| {
                        Some((
                            number,
                            ask,
                            look.elsewhere(&reading, &places).filter(|_| look.lacks(&reading).is_none())?,
                        ))
                    });
                    // One that turned out to be damaged here is asked for alone, before those that are there already.
                    let more = if fetched.is_empty() { limits::SIDE_BY_SIDE - 1 } else { 0 };
                    let wanted = std::iter::once((number, ask, partition)).chain(rest.take(more));
                    let answers = round.fetch(wanted).await;
                    answers.into_iter().rev().for_each(|answer| fetched.push_front(answer));
                }
                if let Some((_, response)) = fetched.pop_front() {
                    answer::write(&mut line.out, &response, ask.is_head, desk.house.date().as_bytes());
                }
            }
        }
        line.write_if_long().await?;
    }
    Ok(())
}

/// A store file lost bytes while a value was copied from one: nothing that has not been sent may be. The client asks again
/// over another connection.
fn lost() -> std::io::Error {
    std::io::Error::other("a store file lost some of its bytes while it was read")
}

struct Round<'a> {
    desk: &'a Desk,
    reading: &'a Reading,
    places: &'a [Place],
    hop: Hop,
    began: u64,
    /// Requests and bytes that were found, and that were not.
    tally: [(u64, u64); 2],
}

impl Round<'_> {
    fn found(&mut self, out: &mut Vec<u8>, ask: &Ask<'_>, value: Value<'_>) {
        self.tally[Outcome::Found as usize].0 += 1;
        self.tally[Outcome::Found as usize].1 += value.len() as u64;
        let (reading, date) = (self.reading, self.desk.house.date());
        let head = || answer::head_of(reading);
        if answer::is_plain(&ask.wants, value.len()) && !reading.is_by_order() {
            let head = reading.plain_head(|| answer::plain_head(&head()));
            answer::write_plain(out, head, &value, ask.is_head, date.as_bytes());
        } else {
            let response = answer::found(&head(), value, &ask.wants);
            answer::write(out, &response, ask.is_head, date.as_bytes());
        }
    }

    fn absent(&mut self, out: &mut Vec<u8>, ask: &Ask<'_>) {
        self.tally[Outcome::Absent as usize].0 += 1;
        let response = answer::absent(self.reading);
        answer::write(out, &response, ask.is_head, self.desk.house.date().as_bytes());
    }

    /// A peer asks for what only others have.
    fn not_here(&self, out: &mut Vec<u8>, ask: &Ask<'_>, partition: u32) {
        let refusal = Refusal::not_that_partition(ask.dataset, self.reading.name().as_str(), partition);
        self.reading.meter().count(Outcome::Failed, Hop::Peer, 0, 1, 0);
        answer::write(out, &answer::refused(&refusal), ask.is_head, self.desk.house.date().as_bytes());
    }

    /// Asks peers for several keys side by side; each answer with its number.
    async fn fetch<'k>(
        &mut self,
        wanted: impl Iterator<Item = (usize, &'k Ask<'k>, u32)>,
    ) -> Vec<(usize, Response<Bytes>)> {
        // What was answered so far has not waited for peers.
        self.settle();
        let (desk, reading, places, began) = (self.desk, self.reading, self.places, self.began);
        let asked = wanted.map(|(number, ask, partition)| async move {
            let errand = |version: &str| Errand::key(ask, version);
            (number, desk.proxied(reading, places, partition, began, errand).await)
        });
        join_all(asked).await
    }

    /// Counts what was answered here so far.
    fn settle(&mut self) {
        let nanos = self.desk.house.clock.nanos().saturating_sub(self.began);
        for (outcome, (requests, bytes)) in [Outcome::Found, Outcome::Absent].into_iter().zip(self.tally) {
            if requests > 0 {
                self.reading.meter().count_many(outcome, self.hop, nanos, requests, bytes);
            }
        }
        self.tally = Default::default();
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}
