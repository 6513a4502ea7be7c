//! The schemes that can be compared, and their names.

use partage_core::base::suggest;
use partage_core::keyspace::DEFAULT_POLICY;
use partage_core::keyspace::hash::HashFunction;
use partage_core::limits;
use partage_core::placement::{self, POLICIES};
use std::fmt;

/// How keys come to nodes: straight by a hash, or by way of shards that a policy places.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// Hash modulo the number of nodes (K8).
    Modulo,
    /// A ring of tokens (K9).
    Ring {
        /// Tokens of a node of capacity 1.
        tokens: u32,
    },
    /// Highest random weight (K9).
    Rendezvous,
    /// Jump (K9). The order of nodes counts, so a node that leaves from the middle is costly.
    Jump,
    /// Rendezvous, with each key that is hot spread over sub-keys (K13).
    Salted {
        /// How many sub-keys: 2 to [`limits::SALT_WAYS`].
        ways: u32,
    },
    /// A fixed number of shards, by hash modulo that number.
    Fixed {
        /// The number of shards, which stays the same.
        shards: u32,
        /// How they come to nodes.
        placed: Placed,
    },
    /// Ranges of hashes, split where the load is.
    HashRange {
        /// How many at the start.
        shards: u32,
        /// How they come to nodes.
        placed: Placed,
    },
    /// Ranges of keys, cut as `cut` says.
    KeyRange {
        /// How many at the start.
        shards: u32,
        /// Where they are cut.
        cut: Cut,
        /// How they come to nodes.
        placed: Placed,
    },
}

/// Where ranges of keys are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// At the quantiles of the load, and again where the load grows.
    Load,
    /// In equal lengths from the lowest key to the highest, once, as one cuts an alphabet.
    Even,
}

/// How shards come to nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placed {
    /// By a placement policy: one of [`POLICIES`].
    Policy(String),
    /// By a ring on which no node is above its share by more than `slack_percent`.
    BoundedRing {
        /// See [`Ring::bounded`](partage_core::keyspace::sharding::ring::Ring::bounded).
        slack_percent: u32,
    },
}

/// A name that no scheme has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no scheme {name:?}{why}")]
pub struct UnknownScheme {
    /// As given, cut to 64 characters.
    pub name: String,
    /// What is wrong with it, when the beginning is right.
    pub why: String,
    /// The known name that takes the fewest edits.
    pub nearest: String,
}

/// Ranges and slots for each node, so that a node can be given a share in steps of one or two percent. With 16, one
/// shard more or less is more than a policy's tolerance, and it looks in vain for an even placement.
const SHARDS_PER_NODE: usize = 64;

/// How far above its share the bounded ring lets a node go: the figure of its paper's examples.
const SLACK_PERCENT: u32 = 25;

/// Sub-keys of a salted key, unless told.
const WAYS: u32 = 16;

/// The policy that places what names no other.
fn by_default() -> Placed {
    Placed::Policy(DEFAULT_POLICY.to_owned())
}

/// As many shards as suit so many nodes: a power of two, 128 at least.
fn shards_for(nodes: usize) -> u32 {
    (nodes * SHARDS_PER_NODE).next_power_of_two().clamp(128, limits::SHARDS) as u32
}

impl Scheme {
    /// The first words of every name.
    pub const KINDS: [&str; 9] =
        ["modulo", "ring", "rendezvous", "jump", "salted", "fixed", "hash-range", "key-range", "key-even"];

    /// What is compared when nothing else is asked for, with as many shards as suit so many nodes.
    pub fn usual(nodes: usize) -> Vec<Scheme> {
        let shards = shards_for(nodes);
        let mut schemes = vec![
            Scheme::Modulo,
            Scheme::Ring { tokens: 1 },
            Scheme::Ring { tokens: limits::RING_TOKENS },
            Scheme::Rendezvous,
            Scheme::Jump,
            Scheme::Salted { ways: WAYS },
        ];
        let policies = ["work_stealing", "balanced", "ring_index"].into_iter();
        let placed = policies.map(|name| Placed::Policy(name.into()));
        let bounded = Placed::BoundedRing { slack_percent: SLACK_PERCENT };
        schemes.extend(placed.chain([bounded]).map(|placed| Scheme::Fixed { shards, placed }));
        schemes.extend([
            Scheme::HashRange { shards, placed: by_default() },
            Scheme::KeyRange { shards, cut: Cut::Load, placed: by_default() },
            Scheme::KeyRange { shards: nodes.max(1) as u32, cut: Cut::Even, placed: by_default() },
        ]);
        schemes
    }

    /// The scheme of that name. A number that is left out suits so many nodes, and so does a policy:
    /// `ring`, `ring-400`, `fixed-4096`, `fixed+balanced`, `key-range-64+work_stealing`.
    pub fn parse(name: &str, nodes: usize) -> Result<Scheme, UnknownScheme> {
        let (body, policy) = match name.split_once('+') {
            Some((body, policy)) => (body, Some(policy)),
            None => (name, None),
        };
        let (kind, number) = match body.rsplit_once('-') {
            Some((kind, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) && !digits.is_empty() => {
                (kind, Some(digits))
            }
            _ => (body, None),
        };
        if !Scheme::KINDS.contains(&kind) {
            return Err(unknown(name, String::new()));
        }
        let number = number.map(str::parse::<u32>).transpose();
        let number = number.map_err(|_| unknown(name, ": its number is too large".into()))?;
        let numbered = !matches!(kind, "modulo" | "rendezvous" | "jump");
        let sharded = matches!(kind, "fixed" | "hash-range" | "key-range" | "key-even");
        if number.is_some() && !numbered {
            return Err(unknown(name, format!(": {kind} takes no number")));
        }
        if policy.is_some() && !sharded {
            return Err(unknown(name, format!(": {kind} has no shards that a policy could place")));
        }
        let shards = number.unwrap_or(shards_for(nodes));
        let given = policy.map(|policy| placed(name, policy)).transpose()?;
        let ranged = || given.clone().unwrap_or_else(by_default);
        Ok(match kind {
            "modulo" => Scheme::Modulo,
            "ring" => Scheme::Ring { tokens: number.unwrap_or(limits::RING_TOKENS) },
            "rendezvous" => Scheme::Rendezvous,
            "jump" => Scheme::Jump,
            "salted" => Scheme::Salted { ways: number.unwrap_or(WAYS) },
            "fixed" => Scheme::Fixed { shards, placed: given.unwrap_or_else(by_default) },
            "hash-range" => Scheme::HashRange { shards, placed: ranged() },
            "key-range" => Scheme::KeyRange { shards, cut: Cut::Load, placed: ranged() },
            _ => {
                let shards = number.unwrap_or(nodes as u32);
                Scheme::KeyRange { shards, cut: Cut::Even, placed: ranged() }
            }
        })
    }

    /// The same with no more shards than the hash can tell apart.
    #[must_use]
    pub fn fitted(self, hash: HashFunction) -> Scheme {
        match self {
            Scheme::Fixed { shards, placed } if hash.bits() < 32 => {
                Scheme::Fixed { shards: shards.min(1 << hash.bits()), placed }
            }
            other => other,
        }
    }
}

fn placed(name: &str, policy: &str) -> Result<Placed, UnknownScheme> {
    if policy == "bounded_ring" {
        return Ok(Placed::BoundedRing { slack_percent: SLACK_PERCENT });
    }
    let found = placement::by_name(policy).map(|policy| Placed::Policy(policy.name().to_owned()));
    found.map_err(|_| {
        let known = POLICIES.into_iter().chain(["bounded_ring"]);
        let meant = suggest::nearest(policy, known).unwrap_or(POLICIES[0]);
        let body = name.split('+').next().unwrap_or(name);
        UnknownScheme {
            nearest: format!("{body}+{meant}"),
            ..unknown(name, format!(": no policy {policy:?}"))
        }
    })
}

fn unknown(name: &str, why: String) -> UnknownScheme {
    let body =
        name.split('+').next().unwrap_or(name).trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
    let nearest = suggest::nearest(body, Scheme::KINDS).unwrap_or(Scheme::KINDS[0]);
    UnknownScheme { name: name.chars().take(64).collect(), why, nearest: nearest.to_owned() }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::Modulo => f.pad("modulo"),
            Scheme::Ring { tokens } => f.pad(&format!("ring-{tokens}")),
            Scheme::Rendezvous => f.pad("rendezvous"),
            Scheme::Jump => f.pad("jump"),
            Scheme::Salted { ways } => f.pad(&format!("salted-{ways}")),
            Scheme::Fixed { shards, placed } => f.pad(&format!("fixed-{shards}+{placed}")),
            Scheme::HashRange { shards, placed } => f.pad(&format!("hash-range-{shards}+{placed}")),
            Scheme::KeyRange { shards, cut: Cut::Load, placed } => {
                f.pad(&format!("key-range-{shards}+{placed}"))
            }
            Scheme::KeyRange { shards, cut: Cut::Even, placed } => {
                f.pad(&format!("key-even-{shards}+{placed}"))
            }
        }
    }
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placed::Policy(name) => f.pad(name),
            Placed::BoundedRing { .. } => f.pad("bounded_ring"),
        }
    }
}
