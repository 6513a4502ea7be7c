//! Numbers that name things. Each is given out once, by a counter that is stored with what it counts, and
//! never again (M5).

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $type:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $type(pub u64);

        impl $type {
            /// The one after this.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&format!(concat!($prefix, "{}"), self.0))
            }
        }
    };
}

id!(
    /// A shard of one keyspace. Children of a split and of a merge get new ids.
    ShardId, "s"
);
id!(
    /// One start of one node. Given by the coordinator at registration; a higher one of the same node
    /// ends the lower ones for ever (O6).
    Incarnation, "i"
);
id!(
    /// One shard on one node, for one stay: new on every add, so that a node which left and came back is
    /// not mistaken for its former self (T10).
    PlacementId, "p"
);
id!(
    /// Grows whenever a shard's leader or bounds change. Every write carries it; storage refuses an older
    /// one (O2).
    Epoch, "e"
);
id!(
    /// Grows whenever the in-sync set of a shard or its leader changes. 0 = the shard has had no in-sync set.
    Configuration, "c"
);
id!(
    /// A plan, numbered through all keyspaces of a cluster.
    PlanId, "plan-"
);

/// What the coordinator knows the session of a worker by: the SHA-256 of the token that it gave to the process which
/// registered. A process that has only the digest cannot speak for that one. The default is the digest of a message without a
/// token.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionDigest(pub [u8; 32]);

impl fmt::Debug for SessionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "SessionDigest({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}

/// Which cluster: drawn at random when its coordinators begin with nothing, so a coordinator whose state was
/// emptied is of another cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is no [`ClusterId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no cluster id: give its 32 hexadecimal digits")]
pub struct BadClusterId(String);

impl std::str::FromStr for ClusterId {
    type Err = BadClusterId;
    fn from_str(text: &str) -> Result<ClusterId, BadClusterId> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        id.map(ClusterId).ok_or_else(|| BadClusterId(text.chars().take(40).collect()))
    }
}

/// Names one committed map apart from any other that was tried at the same sequence (T6): 160 random bits,
/// drawn by the driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TransactionId(pub [u8; 20]);

impl TransactionId {
    /// The transaction of no map. It stands where some later map is known to be, and not which: no map has it.
    pub const OF_NONE: TransactionId = TransactionId(*b"of-no-map-whatsoever");
}

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which map of a keyspace: the sequence grows by one with each commit, from 1; 0 is "no map yet".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation {
    /// The number of the map in its keyspace; 0 = no map yet.
    pub sequence: u64,
    /// Tells apart two maps that were both meant to be at `sequence`.
    pub transaction: TransactionId,
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let later = if self.transaction == TransactionId::OF_NONE { " or later" } else { "" };
        write!(f, "g{}{later}", self.sequence)
    }
}
