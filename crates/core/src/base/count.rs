//! Counts in sentences: "1 node", "2 nodes".

use std::fmt::Display;

/// The count with its noun, which takes an s unless the count is one. Words may stand before the noun: `counted(2, "more
/// node")` is "2 more nodes".
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let ending = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

/// The same with the verb that follows: `counted_with(1, "shard", ("waits", "wait"))` is "1 shard waits".
pub fn counted_with<N>(count: N, noun: &str, (of_one, of_more): (&str, &str)) -> String
where
    N: Display + PartialEq + From<u8>,
{
    let verb = if count == N::from(1) { of_one } else { of_more };
    format!("{} {verb}", counted(count, noun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_goes_without_an_s() {
        let told = [0_u64, 1, 2, 11].map(|count| counted(count, "node"));
        assert_eq!(told, ["0 nodes", "1 node", "2 nodes", "11 nodes"]);
        assert_eq!(counted(1_usize, "more node"), "1 more node");
        let told = [0_usize, 1, 2].map(|count| counted_with(count, "shard", ("is", "are")));
        assert_eq!(told, ["0 shards are", "1 shard is", "2 shards are"]);
    }
}
