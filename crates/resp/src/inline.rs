//! Inline commands: words on a line, as a person types them over a bare connection.

/// Splits a line into words, which are put into `words`, each at its place; the rules are those of Redis: blanks part words,
/// `"…"` takes escapes (`\n \r \t \b \a \xHH`), `'…'` only `\'`. None if quotes do not match, or a word follows a quote at once.
pub fn split(line: &[u8], words: &mut Vec<u8>, places: &mut Vec<(usize, usize)>) -> Option<()> {
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(());
        }
        let from = words.len();
        rest = word(rest, words)?;
        places.push((from, words.len()));
    }
}

/// Takes one word from the front.
fn word<'a>(mut rest: &'a [u8], into: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match rest {
            [b'"', inside @ ..] => return quoted(inside, into),
            [b'\'', inside @ ..] => return plainly_quoted(inside, into),
            [] => return Some(rest),
            // NUL ends a line of Redis.
            [b' ' | b'\n' | b'\r' | b'\t' | b'\0', after @ ..] => return Some(after),
            [byte, after @ ..] => {
                into.push(*byte);
                rest = after;
            }
        }
    }
}

fn quoted<'a>(mut rest: &'a [u8], into: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match rest {
            [] => return None,
            [b'\\', b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                into.push(digit(*high) << 4 | digit(*low));
                rest = after;
            }
            [b'\\', escaped, after @ ..] => {
                into.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest = after;
            }
            [b'"', after @ ..] => return ended(after),
            [byte, after @ ..] => {
                into.push(*byte);
                rest = after;
            }
        }
    }
}

fn plainly_quoted<'a>(mut rest: &'a [u8], into: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match rest {
            [] => return None,
            [b'\\', b'\'', after @ ..] => {
                into.push(b'\'');
                rest = after;
            }
            [b'\'', after @ ..] => return ended(after),
            [byte, after @ ..] => {
                into.push(*byte);
                rest = after;
            }
        }
    }
}

/// A quote ends a word: a blank follows, or nothing.
fn ended(after: &[u8]) -> Option<&[u8]> {
    after.first().is_none_or(u8::is_ascii_whitespace).then_some(after)
}

fn digit(hex: u8) -> u8 {
    match hex {
        b'0'..=b'9' => hex - b'0',
        b'a'..=b'f' => hex - b'a' + 10,
        _ => hex.wrapping_sub(b'A').wrapping_add(10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
        let (mut words, mut places) = (Vec::new(), Vec::new());
        split(line, &mut words, &mut places)?;
        Some(places.into_iter().map(|(from, to)| words[from..to].to_vec()).collect())
    }

    #[test]
    fn words_as_redis_reads_them() {
        let cases: [(&[u8], &[&[u8]]); 6] = [
            (b"SET a 1", &[b"SET", b"a", b"1"]),
            (b"  SET\ta   ", &[b"SET", b"a"]),
            (br#"SET "a b" 'c"d'"#, &[b"SET", b"a b", b"c\"d"]),
            (br#"SET "\x00\xfF\n\"" '\'\n'"#, &[b"SET", b"\0\xff\n\"", b"'\\n"]),
            (b"\"\"", &[b""]),
            (b"", &[]),
        ];
        for (line, expected) in cases {
            assert_eq!(words(line).unwrap(), expected, "{}", line.escape_ascii());
        }
        for bad in [&b"SET \"a"[..], b"SET 'a", b"SET \"a\"b", b"\"\\\""] {
            assert_eq!(words(bad), None, "{}", bad.escape_ascii());
        }
    }
}
