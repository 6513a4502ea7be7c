//! Small numbers for nodes, for as long as something is computed that looks at every replica.
//!
//! A name is found among a thousand by ten comparisons of texts in as many places of the memory; a number is an index.
//! The table is only asked, never walked, so its order cannot be seen (M9).

use crate::base::name::NodeId;
use crate::keyspace::hash::HashFunction;

/// Marks a free place of the table: no node has this number.
const FREE: u32 = u32::MAX;

/// Nodes with their numbers, from 0 in the order in which they came.
#[derive(Debug, Clone, Default)]
pub(super) struct Numbered {
    names: Vec<NodeId>,
    /// Numbers at the places that the hashes of their names point to, or behind.
    table: Vec<u32>,
}

impl Numbered {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// The node of that number.
    pub(super) fn name(&self, number: u32) -> Option<&NodeId> {
        self.names.get(number as usize)
    }

    /// The number of a node, if it has one.
    pub(super) fn of(&self, name: &NodeId) -> Option<u32> {
        let number = *self.table.get(self.place(name))?;
        (number != FREE).then_some(number)
    }

    /// All of them, in the order of their numbers.
    pub(super) fn names(&self) -> impl Iterator<Item = &NodeId> {
        self.names.iter()
    }

    /// The number of a node, which it gets now if it has none.
    pub(super) fn add(&mut self, name: &NodeId) -> u32 {
        if let Some(number) = self.of(name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.clone());
        if 2 * self.names.len() > self.table.len() {
            self.table = vec![FREE; 4 * self.names.len().next_power_of_two()];
            (0..number).for_each(|earlier| self.enter(earlier));
        }
        self.enter(number);
        number
    }

    fn enter(&mut self, number: u32) {
        let place = self.place(&self.names[number as usize]);
        self.table[place] = number;
    }

    /// Where the number of a node is, or would be.
    fn place(&self, name: &NodeId) -> usize {
        let Some(mask) = self.table.len().checked_sub(1) else { return 0 };
        let mut place = HashFunction::Xxh3_64.scatter(name.as_str().as_bytes()) as usize & mask;
        // At most half of the places are taken, so there is a free one.
        while self.table[place] != FREE && self.names[self.table[place] as usize] != *name {
            place = (place + 1) & mask;
        }
        place
    }
}

impl<'a> FromIterator<&'a NodeId> for Numbered {
    fn from_iter<I: IntoIterator<Item = &'a NodeId>>(names: I) -> Numbered {
        let mut numbered = Numbered::default();
        for name in names {
            numbered.add(name);
        }
        numbered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_number_and_others_have_none() {
        for count in [0u32, 1, 2, 3, 100, 1_000] {
            let names: Vec<_> = (0..count).map(|n| NodeId::new(&format!("n{n}")).unwrap()).collect();
            let numbered: Numbered = names.iter().collect();
            assert_eq!(numbered.len(), count as usize);
            for (number, name) in (0..).zip(&names) {
                // The same text in another place of the memory.
                let again = NodeId::new(name.as_str()).unwrap();
                assert_eq!((numbered.of(&again), numbered.name(number)), (Some(number), Some(name)));
            }
            assert_eq!(numbered.of(&NodeId::new("stranger").unwrap()), None);
        }
    }
}
