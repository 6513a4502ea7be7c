//! One request that looks for a version among the nodes of a dataset: whom it asks next, and when it has asked all.
//!
//! Nodes change to a version one after the other, so a request may come to some that are behind it. It asks each node once: first
//! the one that has answered with the version ([`Furthest::has`]), then the others that can be reached. What nodes have said of
//! one version says nothing of another, which other requests may have seen meanwhile.
//!
//! [`Furthest::has`]: super::furthest::Furthest::has

use super::furthest::NodesAsked;
use super::node::Served;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What one request has found out. Nodes are named by their addresses, `host:port`.
#[derive(Debug, Clone, Default)]
pub struct VersionSearch {
    wanted: Option<Served>,
    /// They have said that they are behind.
    behind: BTreeSet<Arc<str>>,
    /// They were to be asked before others. One of them that has said nothing is gone, or slow.
    preferred: BTreeSet<Arc<str>>,
    /// All nodes of the dataset that can be reached; none: they are too many to ask.
    reachable: Option<BTreeSet<Arc<str>>>,
}

impl VersionSearch {
    /// The request wants this version. `reachable` gives the nodes of the dataset that can be reached, none if they are too many
    /// to ask; it is called once for each version.
    pub fn want(&mut self, wanted: &Served, reachable: impl FnOnce() -> Option<BTreeSet<Arc<str>>>) {
        if self.wanted.as_ref() != Some(wanted) {
            let (wanted, reachable) = (Some(wanted.clone()), reachable());
            *self = VersionSearch { wanted, reachable, ..VersionSearch::default() };
        }
    }

    /// The node to ask before others: the one that `has` the version, else one that was not asked yet. None: any.
    pub fn next(&mut self, has: Option<Arc<str>>) -> Option<Arc<str>> {
        let is_left = |node: &Arc<str>| !self.behind.contains(node) && !self.preferred.contains(node);
        let mut others = self.reachable.iter().flatten();
        let next = has.filter(is_left).or_else(|| others.find(|node| is_left(node)).cloned());
        self.preferred.extend(next.clone());
        next
    }

    /// A node has said that it is behind; none: one of which the address is not known. `has` is the node that has had the
    /// version.
    pub fn is_behind(&mut self, node: Option<Arc<str>>, has: Option<Arc<str>>) -> NodesAsked {
        self.behind.extend(node);
        let was_asked = |node: Arc<str>| self.behind.contains(&node) || self.preferred.contains(&node);
        let have_all_said = self.reachable.as_ref().is_some_and(|nodes| nodes.is_subset(&self.behind));
        if have_all_said && has.is_none_or(was_asked) { NodesAsked::All } else { NodesAsked::Some }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::VersionName;

    fn version(name: &str) -> Served {
        Served { order: 0, version: VersionName::new(name).unwrap() }
    }

    fn node(name: &str) -> Option<Arc<str>> {
        Some(name.into())
    }

    fn nodes(names: &[&str]) -> Option<BTreeSet<Arc<str>>> {
        Some(names.iter().map(|name| Arc::from(*name)).collect())
    }

    fn search(wanted: &str, reachable: &[&str]) -> VersionSearch {
        let mut search = VersionSearch::default();
        search.want(&version(wanted), || nodes(reachable));
        search
    }

    #[test]
    fn each_node_is_preferred_once_and_first_the_one_that_has_it() {
        let mut search = search("v2", &["a:80", "b:80", "c:80"]);
        assert_eq!(search.is_behind(node("a:80"), node("c:80")), NodesAsked::Some);
        assert_eq!(search.next(node("c:80")), node("c:80"));
        assert_eq!(search.next(node("c:80")), node("b:80"), "c:80 does not answer");
        assert_eq!(search.next(node("c:80")), None);
    }

    #[test]
    fn all_are_asked_when_each_that_can_be_reached_is_behind() {
        let mut search = search("v2", &["a:80", "b:80"]);
        assert_eq!(search.is_behind(node("a:80"), None), NodesAsked::Some);
        assert_eq!(search.is_behind(node("a:80"), None), NodesAsked::Some, "the same again");
        assert_eq!(search.is_behind(None, None), NodesAsked::Some, "nobody knows which");
        assert_eq!(search.is_behind(node("b:80"), None), NodesAsked::All);
    }

    #[test]
    fn the_node_that_has_it_is_asked_though_it_failed_lately() {
        let mut search = search("v2", &["a:80"]);
        assert_eq!(search.is_behind(node("a:80"), node("b:80")), NodesAsked::Some);
        assert_eq!(search.next(node("b:80")), node("b:80"));
        assert_eq!(search.is_behind(node("a:80"), node("b:80")), NodesAsked::All, "b:80 is gone");
    }

    #[test]
    fn what_was_said_of_one_version_says_nothing_of_another() {
        let mut search = search("v2", &["a:80", "b:80"]);
        assert_eq!(search.is_behind(node("b:80"), node("a:80")), NodesAsked::Some);
        search.want(&version("v2"), || panic!("it is known"));
        search.want(&version("v3"), || nodes(&["a:80", "b:80"]));
        assert_eq!(search.is_behind(node("a:80"), node("b:80")), NodesAsked::Some);
        assert_eq!(search.next(node("b:80")), node("b:80"));
    }

    #[test]
    fn too_many_nodes_are_never_all() {
        let mut search = VersionSearch::default();
        search.want(&version("v2"), || None);
        assert_eq!(search.is_behind(node("a:80"), None), NodesAsked::Some);
        assert_eq!(search.next(None), None);
    }
}
