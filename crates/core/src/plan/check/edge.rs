//! Where the keys of a shard begin or end.
//!
//! A check of a whole map looks at two edges of each shard, so an edge borrows its bytes, or holds a number in its place.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Deref;

/// Bytes; edges order as their bytes do.
#[derive(Debug, Clone)]
pub(super) enum Edge<'a> {
    /// Of a hash, big-endian.
    Hash([u8; 8]),
    /// Of a slot, big-endian.
    Slot([u8; 4]),
    /// Of a key or a name.
    Bytes(Cow<'a, [u8]>),
}

impl<'a> Edge<'a> {
    /// The edge at a key or a name.
    pub(super) fn of(bytes: &'a [u8]) -> Edge<'a> {
        Edge::Bytes(Cow::Borrowed(bytes))
    }

    /// The edge at a point of the hash space.
    pub(super) fn at_hash(point: u64) -> Edge<'a> {
        Edge::Hash(point.to_be_bytes())
    }

    /// The edge at a slot. It orders by number.
    pub(super) fn at_slot(number: u32) -> Edge<'a> {
        Edge::Slot(number.to_be_bytes())
    }
}

impl Deref for Edge<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Edge::Hash(point) => point,
            Edge::Slot(number) => number,
            Edge::Bytes(bytes) => bytes,
        }
    }
}

impl Ord for Edge<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Edge::Hash(this), Edge::Hash(that)) => this.cmp(that),
            (this, that) => this.deref().cmp(that.deref()),
        }
    }
}

impl PartialOrd for Edge<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Edge<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Edge<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_order_as_their_bytes() {
        let edges =
            [Edge::of(b""), Edge::at_slot(1), Edge::at_hash(7), Edge::at_hash(1 << 40), Edge::of(b"a")];
        for (this, that) in edges.iter().zip(&edges[1..]) {
            assert_eq!(this.cmp(that), this.to_vec().cmp(&that.to_vec()), "{this:?} and {that:?}");
        }
        assert_eq!(Edge::of(&7u64.to_be_bytes()), Edge::at_hash(7));
    }
}
