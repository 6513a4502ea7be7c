//! Every limit of the forms, with its reason.

/// Largest message that either side of a stream takes. The orders of a node with 100,000 replicas fit; larger
/// maps are sent in parts ([`crate::maps::in_parts`]).
pub const MESSAGE_BYTES: usize = 64 << 20;

/// Shards in one part of a map on the network: some hundred kilobytes, so that neither side holds a whole
/// map of a million shards as one message beside the map itself.
pub const SHARDS_IN_PART: usize = 4_096;

/// Longest address, path or URL that a node announces: as long as anything that browsers and servers take.
pub const ADDRESS_BYTES: usize = 2_048;

/// Longest sentence (a reason, a refusal) that is taken from the network; longer ones are cut.
pub const SENTENCE_BYTES: usize = 4_096;
