//! One stream of rows from several: of a key that several sources know, the newest source counts.

use lsm_tree::Slice;

use super::layers::Entry;
use super::{Direction, Error, Row, SharedBytes};

/// Entries of one layer or of the tree, in the order of the direction.
pub(super) type Source<'a> = Box<dyn Iterator<Item = Result<Entry, Error>> + Send + 'a>;

/// The rows of several sources.
pub(super) struct Merge<'a> {
    /// The sources, from the newest to the oldest.
    sources: Vec<Source<'a>>,
    /// The next entry of each source.
    heads: Vec<Option<Entry>>,
    direction: Direction,
    begun: bool,
    ended: bool,
}

impl<'a> Merge<'a> {
    /// Sources go from the newest to the oldest.
    pub(super) fn new(sources: Vec<Source<'a>>, direction: Direction) -> Merge<'a> {
        let heads = sources.iter().map(|_| None).collect();
        Merge { sources, heads, direction, begun: false, ended: false }
    }

    fn advance(&mut self, source: usize) -> Result<Option<Entry>, Error> {
        let next = self.sources[source].next().transpose()?;
        Ok(std::mem::replace(&mut self.heads[source], next))
    }

    /// The newest source among those with the first key.
    fn first(&self) -> Option<(usize, Slice)> {
        let mut first: Option<(usize, &Slice)> = None;
        for (source, head) in self.heads.iter().enumerate() {
            let Some((key, _)) = head else { continue };
            let is_before = first.is_none_or(|(_, other)| match self.direction {
                Direction::Forward => key < other,
                Direction::Backward => key > other,
            });
            if is_before {
                first = Some((source, key));
            }
        }
        first.map(|(source, key)| (source, key.clone()))
    }

    fn next_row(&mut self) -> Result<Option<Row>, Error> {
        if !self.begun {
            self.begun = true;
            for source in 0..self.sources.len() {
                self.advance(source)?;
            }
        }
        while let Some((source, key)) = self.first() {
            let newest = self.advance(source)?;
            for older in source + 1..self.sources.len() {
                if self.heads[older].as_ref().is_some_and(|(other, _)| *other == key) {
                    self.advance(older)?;
                }
            }
            if let Some((key, Some(value))) = newest {
                return Ok(Some(Row { key: SharedBytes::stored_key(key), value: SharedBytes::value(value) }));
            }
        }
        Ok(None)
    }
}

impl Iterator for Merge<'_> {
    type Item = Result<Row, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_row().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}
