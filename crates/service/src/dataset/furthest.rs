//! How far each dataset has come, as a router has seen it: no client of it gets an earlier version after a later one.
//!
//! A reader's bookmark: what was read once lies behind. Nodes change to a version one after the other; so a client that is
//! sent to one node and then to another would see a version, the one before it, and the version again. A router asks each
//! node for nothing that is behind the furthest that any has answered with.
//!
//! - (fa) what is asked for never goes back, but by (fb): a rollback is further, by its order;
//! - (fb) what no node has, though one has answered with it, is given up: a node that is gone alone had it, or one that reads
//!   another source. That no node has it is known when each node that can be reached has said so to one request; or, where
//!   there are too many to ask or one does not answer, when no request has found it for [`Furthest::LACKING_MS`]. It is not
//!   taken for the furthest again for [`Furthest::FORGET_MS`].
//!
//! Not done: what other routers have seen. A client that asks several sends back what it was answered with.

use crate::dataset::node::Served;
use partage_core::base::name::KeyspaceName;
use partage_core::base::time::Millis;
use std::collections::BTreeMap;
use std::sync::Arc;

/// For each keyspace the furthest version that a router has seen, and the node that answered with it last.
#[derive(Debug, Clone, Default)]
pub struct Furthest {
    known: BTreeMap<KeyspaceName, Known>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    furthest: Option<Served>,
    /// The node that has answered with it last: `host:port`.
    by: Option<Arc<str>>,
    /// What was given up, and until when it does not count.
    given_up: Option<(Served, Millis)>,
    /// Since when requests have asked for the furthest and not found it, and when one did last.
    lacking: Option<(Millis, Millis)>,
}

/// Which nodes have said to one request that they are behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodesAsked {
    /// All of the dataset that can be reached.
    All,
    /// Some of them: others may have it.
    Some,
}

impl Furthest {
    /// How long something that was given up does not count, in milliseconds.
    pub const FORGET_MS: u64 = 60_000;

    /// After so long without a node that has it, a version is given up though not all nodes were asked: twice what a
    /// router remembers of a node that failed, so that it has been asked again.
    pub const LACKING_MS: u64 = 10_000;

    /// Requests that are less apart are one search: five minutes, as few clients ask for a dataset more seldom.
    pub const ASKED_MS: u64 = 300_000;

    /// Keyspaces that are remembered at the most.
    pub const MOST: usize = 10_000;

    /// What a node must have reached to be asked: what was seen, or what a client says, whichever is further.
    pub fn wanted(&self, keyspace: &KeyspaceName, client: Option<Served>) -> Option<Served> {
        let seen = self.known.get(keyspace).and_then(|known| known.furthest.clone());
        seen.max(client)
    }

    /// The node that has reached that: versions of a node only go forward, so it still has, or is gone.
    pub fn has(&self, keyspace: &KeyspaceName, wanted: &Served) -> Option<Arc<str>> {
        let known = self.known.get(keyspace)?;
        known.by.clone().filter(|_| known.furthest.as_ref() >= Some(wanted))
    }

    /// Whether an answer changes what is remembered.
    pub fn is_news(&self, keyspace: &KeyspaceName, answered: &Served, now: Millis) -> bool {
        let Some(known) = self.known.get(keyspace) else { return self.known.len() < Furthest::MOST };
        let is_given_up = matches!(&known.given_up, Some((gone, until)) if gone == answered && now < *until);
        let is_found = known.lacking.is_some() && known.furthest.as_ref() == Some(answered);
        is_found || !is_given_up && known.furthest.as_ref() < Some(answered)
    }

    /// Remembers what a node has answered.
    pub fn saw(&mut self, keyspace: &KeyspaceName, answered: Served, by: Option<Arc<str>>, now: Millis) {
        if self.is_news(keyspace, &answered, now) {
            let known = self.known.entry(keyspace.clone()).or_default();
            (known.furthest, known.by, known.lacking) = (Some(answered), by, None);
        }
    }

    /// A request has found `wanted` at none of the nodes that it asked. Whether it is given up by that: what was seen
    /// meanwhile is not.
    pub fn lacked(
        &mut self,
        keyspace: &KeyspaceName,
        wanted: &Served,
        asked: NodesAsked,
        now: Millis,
    ) -> bool {
        let Some(known) = self.known.get_mut(keyspace) else { return false };
        if known.furthest.as_ref() != Some(wanted) {
            return false;
        }
        // What no client has asked for in between may have been there.
        let lacking = known.lacking.filter(|(_, last)| now.since(*last) < Furthest::ASKED_MS);
        let since = lacking.map_or(now, |(since, _)| since);
        known.lacking = Some((since, now));
        let is_given_up = asked == NodesAsked::All || now.since(since) >= Furthest::LACKING_MS;
        if is_given_up {
            (known.by, known.lacking) = (None, None);
            known.given_up = known.furthest.take().map(|gone| (gone, now + Furthest::FORGET_MS));
        }
        is_given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::VersionName;
    use proptest::prelude::*;

    fn at(order: u64, version: &str) -> Served {
        Served { order, version: VersionName::new(version).unwrap() }
    }

    fn names() -> KeyspaceName {
        KeyspaceName::new("names").unwrap()
    }

    #[test]
    fn fa_a_rollback_is_further_and_a_client_may_know_more() {
        let mut furthest = Furthest::default();
        assert_eq!(furthest.wanted(&names(), None), None);
        for (answered, wanted) in [
            (at(0, "v1"), at(0, "v1")),
            (at(0, "v3"), at(0, "v3")),
            (at(0, "v2"), at(0, "v3")),
            (at(7, "v1"), at(7, "v1")),
            (at(0, "v4"), at(7, "v1")),
        ] {
            furthest.saw(&names(), answered, None, Millis(0));
            assert_eq!(furthest.wanted(&names(), None), Some(wanted));
        }
        assert_eq!(furthest.wanted(&names(), Some(at(8, "v9"))), Some(at(8, "v9")));
        assert_eq!(furthest.wanted(&names(), Some(at(0, "v9"))), Some(at(7, "v1")));
        assert_eq!(furthest.wanted(&KeyspaceName::new("others").unwrap(), None), None);
    }

    #[test]
    fn who_has_it_is_remembered_with_it() {
        let mut furthest = Furthest::default();
        furthest.saw(&names(), at(0, "v2"), Some("a:80".into()), Millis(0));
        furthest.saw(&names(), at(0, "v1"), Some("b:80".into()), Millis(0));
        assert_eq!(furthest.has(&names(), &at(0, "v2")).as_deref(), Some("a:80"));
        assert_eq!(furthest.has(&names(), &at(0, "v3")), None, "a client knows more");
        assert!(furthest.lacked(&names(), &at(0, "v2"), NodesAsked::All, Millis(0)));
        assert_eq!(furthest.has(&names(), &at(0, "v1")), None);
    }

    #[test]
    fn fb_what_no_node_has_is_given_up_for_a_while() {
        let mut furthest = Furthest::default();
        furthest.saw(&names(), at(0, "zzz"), None, Millis(0));
        let all = NodesAsked::All;
        assert!(
            !furthest.lacked(&names(), &at(0, "v1"), all, Millis(0)),
            "something else was wanted by then"
        );
        assert!(furthest.lacked(&names(), &at(0, "zzz"), all, Millis(1_000)));
        assert!(!furthest.lacked(&names(), &at(0, "zzz"), all, Millis(1_000)), "once");
        furthest.saw(&names(), at(0, "zzz"), None, Millis(2_000));
        assert_eq!(furthest.wanted(&names(), None), None);
        furthest.saw(&names(), at(0, "v1"), None, Millis(2_000));
        assert_eq!(furthest.wanted(&names(), None), Some(at(0, "v1")));
        furthest.saw(&names(), at(0, "zzz"), None, Millis(61_000));
        assert_eq!(furthest.wanted(&names(), None), Some(at(0, "zzz")));
    }

    #[test]
    fn fb_what_some_nodes_lack_is_asked_for_until_it_was_missing_for_long() {
        let mut furthest = Furthest::default();
        let some = NodesAsked::Some;
        let wanted = at(0, "v2");
        furthest.saw(&names(), wanted.clone(), Some("a:80".into()), Millis(0));
        assert!(!furthest.lacked(&names(), &wanted, some, Millis(1_000)));
        assert!(!furthest.lacked(&names(), &wanted, some, Millis(10_999)));
        assert_eq!(furthest.wanted(&names(), None), Some(wanted.clone()));
        assert!(furthest.is_news(&names(), &wanted, Millis(10_999)), "found again");
        furthest.saw(&names(), wanted.clone(), Some("b:80".into()), Millis(10_999));
        assert!(!furthest.is_news(&names(), &wanted, Millis(10_999)));
        assert_eq!(furthest.has(&names(), &wanted).as_deref(), Some("b:80"));
        assert!(!furthest.lacked(&names(), &wanted, some, Millis(11_000)), "from here on anew");
        assert!(!furthest.lacked(&names(), &wanted, some, Millis(20_000)));
        assert!(furthest.lacked(&names(), &wanted, some, Millis(21_000)));
        assert_eq!(furthest.wanted(&names(), None), None);
    }

    #[test]
    fn fb_two_requests_that_are_an_hour_apart_are_no_search() {
        let mut furthest = Furthest::default();
        furthest.saw(&names(), at(0, "v2"), None, Millis(0));
        assert!(!furthest.lacked(&names(), &at(0, "v2"), NodesAsked::Some, Millis(1_000)));
        assert!(!furthest.lacked(&names(), &at(0, "v2"), NodesAsked::Some, Millis(3_600_000)));
    }

    #[test]
    fn it_remembers_so_many() {
        let mut furthest = Furthest::default();
        for number in 0..Furthest::MOST + 5 {
            furthest.saw(&KeyspaceName::new(&format!("k{number}")).unwrap(), at(0, "v1"), None, Millis(0));
        }
        assert_eq!(furthest.known.len(), Furthest::MOST);
    }

    proptest! {
        /// Whatever nodes answer in whichever order, what is wanted never goes back.
        #[test]
        fn fa_never_back(answers in proptest::collection::vec((0u64..4, "[a-c]{1,2}"), 1..40)) {
            let mut furthest = Furthest::default();
            let mut last = None;
            for (order, version) in answers {
                furthest.saw(&names(), at(order, &version), None, Millis(0));
                let wanted = furthest.wanted(&names(), None);
                prop_assert!(wanted >= last && wanted >= Some(at(order, &version)));
                last = wanted;
            }
        }
    }
}
