//! Patterns of keys: `*`, `?`, `[a-z]`, `[^a]`, and `\` before what is meant as it is.

/// Whether a pattern, with the rules of Redis, is met by the whole key.
///
/// A star that does not match tries one byte more; of several stars only the last one is tried again, which finds a match
/// if there is one. So the cost is at most the product of both lengths, and no pattern takes exponential time.
pub fn matches(pattern: &[u8], key: &[u8]) -> bool {
    let (mut at, mut of_key) = (0, 0);
    // Behind the last star, and up to where of the key it reaches.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, of_key));
            continue;
        }
        let met = match (at < pattern.len(), key.get(of_key)) {
            (false, None) => return true,
            (true, Some(byte)) => one(&pattern[at..], *byte),
            _ => None,
        };
        match (met, star) {
            (Some(length), _) => (at, of_key) = (at + length, of_key + 1),
            (None, Some((behind, reach))) if reach < key.len() => {
                star = Some((behind, reach + 1));
                (at, of_key) = (behind, reach + 1);
            }
            (None, _) => return false,
        }
    }
}

/// What all keys that meet the pattern begin with.
pub fn prefix(pattern: &[u8]) -> Vec<u8> {
    let mut prefix = Vec::new();
    let mut rest = pattern;
    loop {
        match rest {
            [b'\\', byte, after @ ..] => {
                prefix.push(*byte);
                rest = after;
            }
            [] | [b'*' | b'?' | b'[' | b'\\', ..] => return prefix,
            [byte, after @ ..] => {
                prefix.push(*byte);
                rest = after;
            }
        }
    }
}

/// The length of the first element of the pattern, if the byte meets it.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', inside @ ..] => class(inside, byte).map(|length| length + 1),
        [b'\\', meant, ..] => (*meant == byte).then_some(2),
        [meant, ..] => (*meant == byte).then_some(1),
        [] => None,
    }
}

/// The length of a class up to and with its `]`, if the byte is in it. Without one it goes to the end.
fn class(inside: &[u8], byte: u8) -> Option<usize> {
    let is_not = inside.first() == Some(&b'^');
    let mut at = usize::from(is_not);
    let mut is_in = false;
    loop {
        match &inside[at.min(inside.len())..] {
            [] => break,
            [b'\\', meant, ..] => {
                is_in |= *meant == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [first, b'-', last, ..] => {
                is_in |= (*first.min(last)..=*first.max(last)).contains(&byte);
                at += 3;
            }
            [meant, ..] => {
                is_in |= *meant == byte;
                at += 1;
            }
        }
    }
    (is_in != is_not).then_some(at.min(inside.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_as_redis_reads_them() {
        let cases: [(&str, &str, bool); 20] = [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*", "abc", true),
            ("a*c", "abcbc", true),
            ("a*c", "abcb", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("[\\]]", "]", true),
            ("[a", "a", true),
            ("*a*b", "xaxxb", true),
            ("**", "x", true),
            ("a\\", "a\\", true),
            ("[]", "a", false),
        ];
        for (pattern, key, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), key.as_bytes()), expected, "{pattern} {key}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        assert!(!matches("a*".repeat(1_000).as_bytes(), "a".repeat(999).as_bytes()));
    }

    proptest::proptest! {
        #[test]
        fn what_meets_a_pattern_begins_with_its_prefix(pattern in "[ab*?\\[\\]\\\\^-]{0,8}", key in "[ab*?]{0,8}") {
            if matches(pattern.as_bytes(), key.as_bytes()) {
                proptest::prop_assert!(key.as_bytes().starts_with(&prefix(pattern.as_bytes())));
            }
        }
    }
}
