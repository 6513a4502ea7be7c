//! `router.toml`.
//!
//! ```toml
//! listen = "127.0.0.1:7440"
//! coordinators = ["10.0.0.1:7400"]
//!
//! [[rules]]                  # GET /users/42/inbox: key "42" of keyspace `users`
//! prefix = "/users/"
//! keyspace = "users"
//! key_segment = 2
//! ```

use super::{ConfigError, DoorFile};
use partage_core::base::name::{KeyspaceName, NameError, Zone};
use partage_core::routing::budget::BudgetPolicy;
use partage_core::routing::pace::Hedging;
use partage_core::routing::retry::RetryPolicy;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The file. What is absent has the default of the router or of the command line.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouterFile {
    /// `host:port` to listen on.
    pub listen: Option<String>,
    /// Whether it may listen on an address that other machines can reach, although there is no authentication.
    pub insecure: Option<bool>,
    /// Which clients may connect, and what they may cost.
    pub door: DoorFile,
    /// `host:port` of each coordinator.
    pub coordinators: Vec<String>,
    /// Where the last maps are kept, to start from when no coordinator can be reached.
    pub maps: Option<PathBuf>,
    /// The keyspaces to hear of; empty = all.
    pub keyspaces: Vec<String>,
    /// Where the router is; reads go to replicas there first.
    pub zone: Option<String>,
    /// Threads; 0 or absent = one for each core.
    pub threads: Option<usize>,
    /// `"slowest"` (later than 19 of 20 answers), `"off"`, or after how many milliseconds.
    pub hedge: Option<HedgeFile>,
    /// See [`RetryPolicy::deadline_ms`].
    pub deadline_ms: Option<u64>,
    /// See [`RetryPolicy::rest_ms`].
    pub rest_ms: Option<u64>,
    /// See [`RetryPolicy::longest_rest_ms`].
    pub longest_rest_ms: Option<u64>,
    /// See [`RetryPolicy::tries`].
    pub tries: Option<u32>,
    /// See [`BudgetPolicy::percent`].
    pub retry_percent: Option<u64>,
    /// See [`BudgetPolicy::capacity`].
    pub retry_purse: Option<u64>,
    /// See [`BudgetPolicy::refill_per_s`].
    pub retry_drip_per_s: Option<u64>,
    /// Largest request body that is kept to be sent again.
    pub kept_body_bytes: Option<usize>,
    /// Requests under way at once, for each thread.
    pub in_flight: Option<usize>,
    /// How keyspace and key are found; the first that fits counts.
    pub rules: Vec<RuleFile>,
}

/// When a read is sent to a second replica as well.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum HedgeFile {
    /// After so many milliseconds.
    AfterMs(u64),
    /// `slowest`: later than 19 of 20 answers; `off`: never.
    Word(String),
}

/// One rule: at most one `keyspace…` and at most one `key…`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleFile {
    /// Only for paths that begin so; empty = all.
    pub prefix: String,
    /// The keyspace is always this one.
    pub keyspace: Option<String>,
    /// It is in this segment of the path, from 1. So it is, in the first, when nothing else is said.
    pub keyspace_segment: Option<usize>,
    /// It is in this header.
    pub keyspace_header: Option<String>,
    /// It is in this parameter of the query.
    pub keyspace_query: Option<String>,
    /// The key is in this segment of the path, from 1. When nothing is said it is the rest of the path.
    pub key_segment: Option<usize>,
    /// It is in this header.
    pub key_header: Option<String>,
    /// It is in this parameter of the query.
    pub key_query: Option<String>,
}

/// A place in a request, not yet checked for what only an HTTP library knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A segment of the path, from 1.
    Segment(usize),
    /// A header, by its name; whether HTTP allows that name is not checked yet.
    Header(String),
    /// A parameter of the query.
    Query(String),
}

impl RouterFile {
    /// How patient a request is, checked.
    pub fn retry(&self, file: &str) -> Result<RetryPolicy, ConfigError> {
        let default = RetryPolicy::default();
        let retry = RetryPolicy {
            deadline_ms: self.deadline_ms.unwrap_or(default.deadline_ms),
            rest_ms: self.rest_ms.unwrap_or(default.rest_ms),
            longest_rest_ms: self.longest_rest_ms.unwrap_or(default.longest_rest_ms),
            tries: self.tries.unwrap_or(default.tries),
        };
        if retry.deadline_ms == 0 || retry.tries == 0 {
            return Err(value(
                file,
                "deadline_ms and tries must be at least 1: with 0 no request is ever sent",
            ));
        }
        if retry.longest_rest_ms < retry.rest_ms {
            let (most, first) = (retry.longest_rest_ms, retry.rest_ms);
            let what =
                format!("longest_rest_ms = {most} is below rest_ms = {first}: raise it or lower rest_ms");
            return Err(value(file, what));
        }
        Ok(retry)
    }

    /// What retries are paid from.
    pub fn budget(&self, file: &str) -> Result<BudgetPolicy, ConfigError> {
        let default = BudgetPolicy::default();
        let percent = self.retry_percent.unwrap_or(default.percent);
        if percent > 100 {
            return Err(value(
                file,
                format!("retry_percent = {percent}: at most 100, a retry for each request"),
            ));
        }
        Ok(BudgetPolicy {
            percent,
            capacity: self.retry_purse.unwrap_or(default.capacity),
            refill_per_s: self.retry_drip_per_s.unwrap_or(default.refill_per_s),
        })
    }

    /// When reads are hedged.
    pub fn hedging(&self, file: &str) -> Result<Hedging, ConfigError> {
        match &self.hedge {
            None => Ok(Hedging::default()),
            Some(HedgeFile::AfterMs(ms)) => Ok(Hedging::AfterMs(*ms)),
            Some(HedgeFile::Word(word)) if word == "slowest" => Ok(Hedging::Slowest),
            Some(HedgeFile::Word(word)) if word == "off" => Ok(Hedging::Off),
            Some(HedgeFile::Word(word)) => {
                let what = format!("hedge = {word:?}: say \"slowest\", \"off\", or a number of milliseconds");
                Err(value(file, what))
            }
        }
    }

    /// How many requests may be under way at once; none = the default.
    pub fn in_flight(&self, file: &str) -> Result<Option<usize>, ConfigError> {
        match self.in_flight {
            Some(0) => Err(value(file, "in_flight must be at least 1: with 0 every request is refused")),
            given => Ok(given),
        }
    }

    /// The keyspaces to hear of.
    pub fn keyspaces(&self, file: &str) -> Result<BTreeSet<KeyspaceName>, ConfigError> {
        let name = |name: &String| KeyspaceName::new(name).map_err(|error: NameError| value(file, error));
        self.keyspaces.iter().map(name).collect()
    }

    /// Where the router is.
    pub fn zone(&self, file: &str) -> Result<Option<Zone>, ConfigError> {
        self.zone.as_deref().map(Zone::new).transpose().map_err(|error| value(file, error))
    }
}

impl RuleFile {
    /// Where the keyspace is, when its name is not fixed; none = nothing is said.
    pub fn keyspace_place(&self, file: &str) -> Result<Option<Place>, ConfigError> {
        let named = usize::from(self.keyspace.is_some());
        let (segment, header, query) = (self.keyspace_segment, &self.keyspace_header, &self.keyspace_query);
        self.place(file, "keyspace", named, (segment, header, query))
    }

    /// Where the key is; none = nothing is said.
    pub fn key_place(&self, file: &str) -> Result<Option<Place>, ConfigError> {
        self.place(file, "key", 0, (self.key_segment, &self.key_header, &self.key_query))
    }

    fn place(
        &self,
        file: &str,
        what: &str,
        before: usize,
        (segment, header, query): (Option<usize>, &Option<String>, &Option<String>),
    ) -> Result<Option<Place>, ConfigError> {
        let given =
            [segment.map(Place::Segment), header.clone().map(Place::Header), query.clone().map(Place::Query)];
        let mut given: Vec<Place> = given.into_iter().flatten().collect();
        let prefix = &self.prefix;
        if before + given.len() > 1 {
            let what =
                format!("the rule for prefix {prefix:?} says more than one place for the {what}: keep one");
            return Err(value(file, what));
        }
        if segment == Some(0) {
            let what = format!("the rule for prefix {prefix:?}: path segments are counted from 1");
            return Err(value(file, what));
        }
        Ok(given.pop())
    }
}

fn value(file: &str, what: impl ToString) -> ConfigError {
    ConfigError::Value { file: file.to_owned(), what: what.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn of(text: &str) -> RouterFile {
        parse("r.toml", text).unwrap()
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        let file = of("");
        assert_eq!(file.retry("r.toml").unwrap(), RetryPolicy::default());
        assert_eq!(file.budget("r.toml").unwrap(), BudgetPolicy::default());
        assert_eq!(file.hedging("r.toml").unwrap(), Hedging::Slowest);
        assert!(file.zone("r.toml").unwrap().is_none() && file.keyspaces("r.toml").unwrap().is_empty());
    }

    #[test]
    fn an_unknown_key_names_the_nearest_also_inside_a_rule() {
        let error = parse::<RouterFile>("r.toml", "deadline = 5").unwrap_err().to_string();
        assert_eq!(error, "r.toml, line 1: there is no key \"deadline\": did you mean \"deadline_ms\"?");
        let error = parse::<RouterFile>("r.toml", "[[rules]]\nkey_heder = \"x\"").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("did you mean \"key_header\"?"), "{error}");
    }

    #[test]
    fn a_hedge_is_a_word_or_a_time() {
        let hedge = |text| of(text).hedging("r.toml");
        assert_eq!(hedge("hedge = \"off\"").unwrap(), Hedging::Off);
        assert_eq!(hedge("hedge = \"slowest\"").unwrap(), Hedging::Slowest);
        assert_eq!(hedge("hedge = 20").unwrap(), Hedging::AfterMs(20));
        assert!(hedge("hedge = \"never\"").unwrap_err().to_string().contains("\"off\""));
    }

    #[test]
    fn a_rule_names_one_place_each() {
        let rule = |text: &str| of(&format!("[[rules]]\n{text}")).rules.remove(0);
        let place = rule("keyspace = \"users\"\nkey_segment = 2").key_place("r.toml").unwrap();
        assert_eq!(place, Some(Place::Segment(2)));
        let two = rule("keyspace = \"users\"\nkeyspace_header = \"x\"").keyspace_place("r.toml");
        assert!(two.unwrap_err().to_string().contains("more than one place for the keyspace"));
        let two = rule("key_query = \"id\"\nkey_header = \"x\"").key_place("r.toml");
        assert!(two.unwrap_err().to_string().contains("more than one place for the key"));
        assert!(rule("key_segment = 0").key_place("r.toml").unwrap_err().to_string().contains("from 1"));
    }

    #[test]
    fn contradictions_are_refused() {
        let error = of("rest_ms = 600").retry("r.toml").unwrap_err().to_string();
        assert!(error.contains("longest_rest_ms = 500 is below rest_ms = 600"), "{error}");
        assert!(of("tries = 0").retry("r.toml").is_err() && of("deadline_ms = 0").retry("r.toml").is_err());
        assert!(of("in_flight = 0").in_flight("r.toml").is_err());
        assert!(of("retry_percent = 101").budget("r.toml").is_err());
        assert!(of("keyspaces = [\"a/b\"]").keyspaces("r.toml").is_err());
    }
}
