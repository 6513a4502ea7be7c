//! What does not work at this node, for its pages and metrics: the source, and the coordination service.
//!
//! Each failure is kept with its reason, since when it lasts, and how often it has been met since.

use partage_service::dataset::name::DatasetName;
use partage_wire::dataset::status::LinkState;
use std::collections::BTreeMap;

/// Between two lines of the log about one trouble, in seconds: often enough to be seen, seldom enough to drown nothing.
const SAY_EVERY_S: u64 = 60;

/// Something that does not work, however often it is tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The reason of the last failure.
    pub reason: String,
    /// When the first failure was, in seconds since 1970.
    pub since: u64,
    /// How many failures there were since then.
    pub times: u64,
    /// When the log had the last line about it, in seconds since 1970.
    said: u64,
}

impl Trouble {
    /// The trouble after one more failure at `now`; and whether that is worth a line of the log: the first is, then one a minute.
    pub fn again(before: Option<&Trouble>, reason: String, now: u64) -> (Trouble, bool) {
        let Some(before) = before else {
            return (Trouble { reason, since: now, times: 1, said: now }, true);
        };
        let is_due = now.saturating_sub(before.said) >= SAY_EVERY_S;
        let said = if is_due { now } else { before.said };
        (Trouble { reason, since: before.since, times: before.times + 1, said }, is_due)
    }
}

/// How the node stands with the coordination service, or with the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Link {
    /// The node was started without such a service.
    #[default]
    Unused,
    /// The node has not reached it yet, and no try has failed.
    Connecting,
    /// The node reaches it, and nothing fails.
    Connected,
    /// The node does not reach it; what it heard last holds (S2).
    Away(Trouble),
}

impl Link {
    /// The same without the trouble, as pages write it.
    pub fn state(&self) -> LinkState {
        match self {
            Link::Unused => LinkState::Unused,
            Link::Connecting => LinkState::Connecting,
            Link::Connected => LinkState::Connected,
            Link::Away(_) => LinkState::Away,
        }
    }
}

/// All that does not work at this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Troubles {
    /// The trouble with the source as a whole; none: it can be read.
    pub source: Option<Trouble>,
    /// The trouble with a dataset in it, also with one that is not in the catalogue.
    pub datasets: BTreeMap<DatasetName, Trouble>,
    /// Folders of a dataset that are no versions, for their names; some of them, and why.
    pub refused: BTreeMap<DatasetName, Vec<String>>,
    /// How the node stands with the coordination service.
    pub link: Link,
    /// How the node stands with the coordinator.
    pub coordinator: Link,
}

impl Troubles {
    /// Why a dataset is not looked at: its own trouble, or that of all.
    pub fn of(&self, dataset: &str) -> Option<&Trouble> {
        self.datasets.get(dataset).or(self.source.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_said_when_it_begins_and_then_once_a_minute() {
        let mut trouble: Option<Trouble> = None;
        let said: Vec<u64> = (1_000..1_200)
            .filter(|now| {
                let (next, is_said) = Trouble::again(trouble.as_ref(), format!("at {now}"), *now);
                trouble = Some(next);
                is_said
            })
            .collect();
        assert_eq!(said, [1_000, 1_060, 1_120, 1_180]);
        let trouble = trouble.unwrap();
        assert_eq!((trouble.since, trouble.times, trouble.reason.as_str()), (1_000, 200, "at 1199"));
        let (back, is_said) = Trouble::again(Some(&trouble), String::new(), 5);
        assert!(!is_said && back.since == 1_000, "a clock that goes back says nothing more often");
    }

    #[test]
    fn a_dataset_has_its_own_trouble_or_that_of_all() {
        let of = |reason: &str| Trouble::again(None, reason.to_owned(), 0).0;
        let name = DatasetName::new("names").unwrap();
        let datasets = BTreeMap::from([(name, of("403"))]);
        let troubles = Troubles { source: Some(of("away")), datasets, ..Troubles::default() };
        let told = |name: &str| troubles.of(name).unwrap().reason.clone();
        assert_eq!([told("names"), told("others")], ["403", "away"]);
        assert!(Troubles::default().of("names").is_none());
    }
}
