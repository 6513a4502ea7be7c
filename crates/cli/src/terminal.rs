//! What of a text a terminal may be given.
//!
//! Names, reasons, errors and values come from outside, and a terminal does what control characters say: it hides lines,
//! writes over others, or types for the person who looks on. So all that is printed for people goes through here, on its
//! way out of [`crate::output`] and of the log; what has a meaning of its own, such as colours, is added behind it.

use std::borrow::Cow;

/// Whether a terminal does something else with it than to show it: controls (C0, DEL, C1), and what turns the direction of
/// writing.
fn is_control(one: char) -> bool {
    one.is_control()
        || matches!(one, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, keeps: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_foul = |one: char| is_control(one) && !keeps(one);
    if !text.contains(is_foul) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for one in text.chars() {
        match is_foul(one) {
            true => shown.extend(one.escape_default()),
            false => shown.push(one),
        }
    }
    Cow::Owned(shown)
}

/// The text with control characters spelled out, as `\u{1b}`; line breaks and tabs stay.
pub fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, |one| one == '\n' || one == '\t')
}

/// The same on one line.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |one| one == '\t')
}

/// A text in which single characters have a colour, one of the 256 of terminals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drawing(Vec<(String, Option<u8>)>);

impl Drawing {
    /// Goes on with a text.
    pub fn text(&mut self, text: &str) {
        match self.0.last_mut() {
            Some((last, None)) => last.push_str(text),
            Some((_, Some(_))) | None => self.0.push((text.to_owned(), None)),
        }
    }

    /// Goes on with a character in that colour, if any.
    pub fn mark(&mut self, mark: char, colour: Option<u8>) {
        match colour {
            Some(colour) => self.0.push((mark.to_string(), Some(colour))),
            None => self.text(mark.encode_utf8(&mut [0; 4])),
        }
    }

    /// The text with escape sequences for colours.
    pub fn painted(&self) -> String {
        let piece = |(text, colour): &(String, Option<u8>)| match colour {
            Some(colour) => format!("\x1b[38;5;{colour}m{}\x1b[0m", shown(text)),
            None => shown(text).into_owned(),
        };
        self.0.iter().map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_do_something_with_is_spelled_out() {
        let foul = "a\x1b[2Jb\x07\r\u{9b}31m\x7f\u{202e}c\0";
        assert_eq!(shown(foul), "a\\u{1b}[2Jb\\u{7}\\r\\u{9b}31m\\u{7f}\\u{202e}c\\u{0}");
        assert_eq!(shown("l\u{fc}gt\n\tnicht\u{2026} \u{2588}"), "l\u{fc}gt\n\tnicht\u{2026} \u{2588}");
        assert_eq!(line("one\ntwo\tthree"), "one\\ntwo\tthree");
        for one in (0..=0x10_ffff).filter_map(char::from_u32).filter(|one| one.is_control()) {
            let text = format!("a{one}b");
            assert!(!line(&text).contains(|c: char| c.is_control() && c != '\t'), "{one:?}");
        }
    }

    #[test]
    fn a_drawing_has_the_colours_that_the_program_gave_it_and_no_others() {
        let mut drawing = Drawing::default();
        drawing.text("n1\x1b[8m ");
        drawing.mark('x', Some(34));
        drawing.mark('y', None);
        assert_eq!(drawing.painted(), "n1\\u{1b}[8m \x1b[38;5;34mx\x1b[0my");
    }
}
