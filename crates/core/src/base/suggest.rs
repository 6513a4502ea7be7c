//! "Did you mean …?": the known name that a mistyped one is nearest to.
//!
//! Nearest is by fewest letters changed, added or left out (Levenshtein), upper and lower case being the
//! same. Given names are cut, as they may come from anybody.

/// Letters of a given name that are looked at: longer than any name of ours that a person would type.
const LETTERS: usize = 64;

/// The known name that takes the fewest edits, the earliest of several; none only where nothing is known.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = letters(given);
    known.into_iter().min_by_key(|name| edits(&given, &letters(name)))
}

/// The nearest known name if it is near enough to be a slip: at most a third of its letters, at least two, and never all.
pub fn close<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let found = nearest(given, known)?;
    let count = found.chars().count();
    let allowed = (count / 3).max(2).min(count.saturating_sub(1));
    (edits(&letters(given), &letters(found)) <= allowed).then_some(found)
}

fn letters(name: &str) -> Vec<char> {
    name.chars().take(LETTERS).map(|letter| letter.to_ascii_lowercase()).collect()
}

/// How many letters must be changed, added or left out to turn `from` into `to`.
fn edits(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted_either_way() {
        for (a, b, expected) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2)] {
            assert_eq!(edits(&letters(a), &letters(b)), expected, "{a} {b}");
            assert_eq!(edits(&letters(b), &letters(a)), expected, "{b} {a}");
        }
    }

    #[test]
    fn the_nearest_is_always_found_and_a_close_one_only_when_it_is_a_slip() {
        let known = ["users", "orders", "balanced"];
        assert_eq!(nearest("usres", known), Some("users"));
        assert_eq!(nearest("BALANCE", known), Some("balanced"));
        assert_eq!(nearest("anything", []), None);
        assert_eq!(close("order", known), Some("orders"));
        assert_eq!(close("completely-different", known), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), known), Some("users"));
    }
}
