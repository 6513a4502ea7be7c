//! Requests for datasets: any of their nodes answers any key, several keys, and ranges; and no answer is of an earlier
//! version than one before it ([`Furthest`]).
//!
//! A node that is behind says so (412); then the proxy asks the others in turn, also those that lack the key: they ask their
//! peers. The proxy gives up a version that no node has, and takes an earlier one.
//!
//! Several keys and ranges go to one node whole. It asks its peers for what it lacks, all of one version, and puts the
//! answer together; if the proxy did that, each node would answer from its own version.

use super::pages::refused;
use super::serve::{ThreadState, failed};
use crate::call::AnsweredBy;
use crate::call::body::{AnswerBody, Outgoing};
use crate::limits;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, header};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::map::Access;
use partage_service::dataset::furthest::{Furthest, NodesAsked};
use partage_service::dataset::node::Served;
use partage_service::dataset::version_search::VersionSearch;
use partage_wire::request::at_least::{self, AT_LEAST};
use std::sync::{Arc, PoisonError, RwLock};

/// The versions seen, for all threads.
#[derive(Debug, Default)]
pub struct SeenVersions {
    furthest: RwLock<Furthest>,
}

/// A request for a dataset.
pub struct DatasetRequest {
    pub keyspace: KeyspaceName,
    /// None: it is for several keys, or for the dataset.
    pub key: Option<Vec<u8>>,
    pub parts: Parts,
    pub body: Outgoing,
}

/// Asks until there is an answer that is not behind.
pub async fn answer(thread: &ThreadState, asked: DatasetRequest) -> Response<AnswerBody> {
    let DatasetRequest { keyspace, key, mut parts, body } = asked;
    let client = match parts.headers.get(AT_LEAST).map(|told| at_least::read(told.as_bytes())) {
        Some(None) => {
            let what = "partage-at-least is not understood";
            let way_out = "send an order and a version, as in \"0 20240102\"";
            return refused(StatusCode::BAD_REQUEST, "at_least", what, way_out);
        }
        told => told.flatten(),
    };
    let Ok(mut body) = body.kept(limits::KEYS_BYTES).await else {
        let what = "the body of the request broke off";
        return refused(StatusCode::BAD_REQUEST, "body", what, "send it whole");
    };
    let seen = &thread.proxy.seen;
    let mut search = VersionSearch::default();
    let reachable = || thread.caller.reachable_nodes(&keyspace, limits::BEHIND_TRIES as usize);
    for tries in 1.. {
        let wanted = seen.wanted(&keyspace, client.clone());
        tell(&mut parts, wanted.as_ref());
        let again = body.again();
        let can_repeat = again.is_some();
        let sent = std::mem::replace(&mut body, again.unwrap_or_default());
        let request = Request::from_parts(parts.clone(), sent);
        let first = wanted.as_ref().filter(|_| tries > 1).and_then(|wanted| {
            search.want(wanted, reachable);
            search.next(seen.has(&keyspace, wanted))
        });
        let key = key.clone().filter(|_| tries <= 2);
        let key = key.unwrap_or_else(|| partage_random::seed().to_le_bytes().to_vec());
        let of = (keyspace.as_str(), &key[..], Access::Read);
        let answer = match thread.caller.request_first(request, of, first.as_deref()).await {
            Ok(answer) => answer,
            Err(error) => return failed(&error),
        };
        let by = answer.extensions().get::<AnsweredBy>().map(|by| by.0.clone());
        let Some(wanted) = wanted.filter(|_| answer.status() == StatusCode::PRECONDITION_FAILED) else {
            if let Some(answered) = at_least::of_answer(answer.headers()) {
                seen.saw(thread, &keyspace, answered, by);
            }
            return answer;
        };
        thread.caller.counters().behind();
        search.want(&wanted, reachable);
        let asked = search.is_behind(by, seen.has(&keyspace, &wanted));
        let is_over = asked == NodesAsked::All || tries >= limits::BEHIND_TRIES;
        let is_given_up =
            is_over && client.as_ref() < Some(&wanted) && seen.lacked(thread, &keyspace, &wanted, asked);
        if is_given_up {
            search = VersionSearch::default();
            let Served { order, version } = wanted;
            tracing::warn!(%keyspace, order, %version, "no node has this version any more, which one has answered with");
        }
        if !can_repeat || is_over && !is_given_up || tries > 2 * limits::BEHIND_TRIES {
            return behind(&keyspace);
        }
    }
    behind(&keyspace)
}

fn tell(parts: &mut Parts, wanted: Option<&Served>) {
    match wanted.and_then(|wanted| HeaderValue::from_str(&at_least::text(wanted)).ok()) {
        Some(wanted) => drop(parts.headers.insert(AT_LEAST, wanted)),
        None => drop(parts.headers.remove(AT_LEAST)),
    }
}

fn behind(keyspace: &KeyspaceName) -> Response<AnswerBody> {
    let what =
        format!("no node of {keyspace} that was asked has reached the version that was answered with before");
    let mut answer = refused(StatusCode::SERVICE_UNAVAILABLE, "behind", &what, "ask again");
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

impl SeenVersions {
    fn wanted(&self, keyspace: &KeyspaceName, client: Option<Served>) -> Option<Served> {
        self.furthest.read().unwrap_or_else(PoisonError::into_inner).wanted(keyspace, client)
    }

    fn has(&self, keyspace: &KeyspaceName, wanted: &Served) -> Option<Arc<str>> {
        self.furthest.read().unwrap_or_else(PoisonError::into_inner).has(keyspace, wanted)
    }

    fn saw(&self, thread: &ThreadState, keyspace: &KeyspaceName, answered: Served, by: Option<Arc<str>>) {
        let now = thread.caller.now();
        let is_news =
            self.furthest.read().unwrap_or_else(PoisonError::into_inner).is_news(keyspace, &answered, now);
        if is_news {
            self.furthest.write().unwrap_or_else(PoisonError::into_inner).saw(keyspace, answered, by, now);
        }
    }

    fn lacked(
        &self,
        thread: &ThreadState,
        keyspace: &KeyspaceName,
        wanted: &Served,
        asked: NodesAsked,
    ) -> bool {
        let now = thread.caller.now();
        self.furthest.write().unwrap_or_else(PoisonError::into_inner).lacked(keyspace, wanted, asked, now)
    }
}
