//! Reading a filter: one pass, one look ahead, errors by the character.

use super::{Check, Comparison, Expression, Literal, Number, Step};
use partage_core::limits::{FILTER_BYTES, FILTER_DEPTH};

/// Why a text is no filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the filter is not understood at character {at}: {what}")]
pub struct FilterError {
    /// The character, counted from 1; one more than there are, where the filter ends too early.
    pub at: usize,
    /// What is wrong there, and what would do.
    pub what: String,
}

/// Words that are no names unless they are quoted.
const WORDS: [&str; 9] = ["and", "or", "not", "in", "exists", "starts_with", "true", "false", "null"];

struct Parser<'a> {
    text: &'a str,
    /// The byte that is read next.
    at: usize,
    depth: usize,
}

pub(super) fn filter(text: &str) -> Result<Expression, FilterError> {
    if text.len() > FILTER_BYTES {
        let what = format!("it has {} bytes, and a filter may have {FILTER_BYTES}", text.len());
        return Err(FilterError { at: 1, what });
    }
    let mut parser = Parser { text, at: 0, depth: 0 };
    let expression = parser.any_of()?;
    parser.space();
    match parser.rest().is_empty() {
        true => Ok(expression),
        false => Err(parser.wrong("the filter should end here, or go on with and, or")),
    }
}

/// Reads a path that stands alone.
pub(super) fn path(text: &str) -> Result<Vec<Step>, FilterError> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    parser.space();
    let path = parser.path()?;
    parser.space();
    match parser.rest().is_empty() {
        true => Ok(path),
        false => Err(parser.wrong("the path should end here, or go on with a dot or a bracket")),
    }
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn wrong(&self, what: impl Into<String>) -> FilterError {
        self.wrong_at(self.at, what)
    }

    fn wrong_at(&self, at: usize, what: impl Into<String>) -> FilterError {
        FilterError { at: self.text[..at].chars().count() + 1, what: what.into() }
    }

    /// Takes a sign, if it is next.
    fn takes(&mut self, sign: &str) -> bool {
        self.space();
        let is_next = self.rest().starts_with(sign);
        if is_next {
            self.at += sign.len();
        }
        is_next
    }

    /// The bare name that is next; empty: there is none.
    fn name(&self) -> &'a str {
        let rest = self.rest();
        let ends = |letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == '-');
        let name = &rest[..rest.find(ends).unwrap_or(rest.len())];
        let is_name = name.starts_with(|letter: char| letter.is_alphabetic() || letter == '_');
        if is_name { name } else { "" }
    }

    /// Takes a word of the language, if it is next.
    fn takes_word(&mut self, word: &str) -> bool {
        self.space();
        let is_next = self.name().eq_ignore_ascii_case(word);
        if is_next {
            self.at += word.len();
        }
        is_next
    }

    /// Goes one level further in.
    fn deeper(&mut self) -> Result<(), FilterError> {
        self.depth += 1;
        match self.depth > FILTER_DEPTH {
            true => {
                Err(self
                    .wrong(format!("parentheses and not are within each other {FILTER_DEPTH} times at most")))
            }
            false => Ok(()),
        }
    }

    fn any_of(&mut self) -> Result<Expression, FilterError> {
        let mut all = vec![self.all_of()?];
        while self.takes_word("or") {
            all.push(self.all_of()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expression::Or(all) })
    }

    fn all_of(&mut self) -> Result<Expression, FilterError> {
        let mut all = vec![self.one()?];
        while self.takes_word("and") {
            all.push(self.one()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expression::And(all) })
    }

    fn one(&mut self) -> Result<Expression, FilterError> {
        if self.takes_word("not") {
            self.deeper()?;
            let other = self.one()?;
            self.depth -= 1;
            return Ok(Expression::Not(Box::new(other)));
        }
        if self.takes("(") {
            self.deeper()?;
            let inner = self.any_of()?;
            self.depth -= 1;
            return match self.takes(")") {
                true => Ok(inner),
                false => Err(self.wrong("a closing parenthesis is missing")),
            };
        }
        let path = self.path()?;
        Ok(Expression::Test(path, self.check()?))
    }

    fn path(&mut self) -> Result<Vec<Step>, FilterError> {
        let mut path = Vec::new();
        if !self.takes("$") {
            path.push(self.field()?);
        }
        loop {
            if self.rest().starts_with('.') {
                self.at += 1;
                path.push(self.field()?);
            } else if self.rest().starts_with('[') {
                self.at += 1;
                path.push(self.place()?);
            } else {
                return Ok(path);
            }
        }
    }

    fn field(&mut self) -> Result<Step, FilterError> {
        self.space();
        if self.rest().starts_with('"') {
            return self.text().map(Step::Field);
        }
        let name = self.name();
        let is_first = self.at == 0 || !self.text[..self.at].ends_with('.');
        if name.is_empty() {
            return Err(self.wrong("a path is expected: a name such as size or author.name, or $"));
        }
        if is_first && WORDS.iter().any(|word| name.eq_ignore_ascii_case(word)) {
            return Err(
                self.wrong(format!("a path is expected: put a field of the name {name} in double quotes"))
            );
        }
        self.at += name.len();
        Ok(Step::Field(name.to_owned()))
    }

    fn place(&mut self) -> Result<Step, FilterError> {
        let begin = self.at;
        let rest = self.rest();
        let digits = &rest[..rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len())];
        self.at += digits.len();
        match digits.parse() {
            Ok(place) if self.rest().starts_with(']') => {
                self.at += 1;
                Ok(Step::Item(place))
            }
            _ => Err(self.wrong_at(begin, "a place in a list is expected, from 0, and a closing bracket")),
        }
    }

    fn check(&mut self) -> Result<Check, FilterError> {
        use Comparison::{AtLeast, AtMost, Less, More, Other, Same};
        if self.takes_word("exists") {
            return Ok(Check::Exists);
        }
        if self.takes_word("starts_with") {
            self.space();
            return self.text().map(Check::StartsWith);
        }
        if self.takes_word("in") {
            return self.list().map(Check::In);
        }
        // The longer signs first.
        let signs = [
            ("==", Same),
            ("=", Same),
            ("!=", Other),
            ("<=", AtMost),
            (">=", AtLeast),
            ("<", Less),
            (">", More),
        ];
        for (sign, comparison) in signs {
            if self.takes(sign) {
                return self.literal().map(|literal| Check::Compare(comparison, literal));
            }
        }
        Err(self.wrong("a comparison is expected: =, !=, <, <=, >, >=, in, starts_with or exists"))
    }

    fn list(&mut self) -> Result<Vec<Literal>, FilterError> {
        if !self.takes("(") {
            return Err(self.wrong("values in parentheses are expected: (1, 2)"));
        }
        let mut all = vec![self.literal()?];
        while self.takes(",") {
            all.push(self.literal()?);
        }
        match self.takes(")") {
            true => Ok(all),
            false => Err(self.wrong("a comma or a closing parenthesis is expected")),
        }
    }

    fn literal(&mut self) -> Result<Literal, FilterError> {
        self.space();
        if self.rest().starts_with('"') {
            return self.text().map(Literal::Text);
        }
        if self.rest().starts_with(|letter: char| letter.is_ascii_digit() || letter == '-') {
            return self.number().map(Literal::Number);
        }
        for (word, literal) in
            [("true", Literal::Bool(true)), ("false", Literal::Bool(false)), ("null", Literal::Null)]
        {
            if self.takes_word(word) {
                return Ok(literal);
            }
        }
        Err(self.wrong("a value is expected: a text in double quotes, a number, true, false or null"))
    }

    fn number(&mut self) -> Result<Number, FilterError> {
        let (begin, rest) = (self.at, self.rest());
        let is_part = |letter: char| letter.is_ascii_digit() || "+-.eE".contains(letter);
        let text = &rest[..rest.find(|letter| !is_part(letter)).unwrap_or(rest.len())];
        self.at += text.len();
        if let Ok(whole) = text.parse() {
            return Ok(Number::Whole(whole));
        }
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number
            .map(Number::Fraction)
            .ok_or_else(|| self.wrong_at(begin, format!("{text} is no number of 64 bits")))
    }

    /// A text in double quotes.
    fn text(&mut self) -> Result<String, FilterError> {
        let begin = self.at;
        if !self.rest().starts_with('"') {
            return Err(self.wrong("a text in double quotes is expected"));
        }
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(letter) = self.rest().chars().next() else {
                return Err(self.wrong_at(begin, "the text that begins here has no closing double quote"));
            };
            self.at += letter.len_utf8();
            match letter {
                '"' => return Ok(text),
                '\\' => text.push(self.escape()?),
                other => text.push(other),
            }
        }
    }

    /// What is behind a backslash, as JSON has it.
    fn escape(&mut self) -> Result<char, FilterError> {
        let begin = self.at - 1;
        let letter = self.rest().chars().next();
        self.at += letter.map_or(0, char::len_utf8);
        match letter {
            Some(same @ ('"' | '\\' | '/')) => Ok(same),
            Some('b') => Ok('\u{8}'),
            Some('f') => Ok('\u{c}'),
            Some('n') => Ok('\n'),
            Some('r') => Ok('\r'),
            Some('t') => Ok('\t'),
            Some('u') => self.unicode(begin),
            _ => Err(self.wrong_at(begin, "this escape is not one of JSON: write \\\\ for a backslash")),
        }
    }

    /// Four hex digits, and four more behind `\u` where these are half of a character.
    fn unicode(&mut self, begin: usize) -> Result<char, FilterError> {
        let first = self.hex();
        let letter = match first {
            Some(high @ 0xd800..=0xdbff) if self.rest().starts_with("\\u") => {
                self.at += 2;
                let low = self.hex().filter(|low| (0xdc00..=0xdfff).contains(low));
                low.and_then(|low| char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00)))
            }
            other => other.and_then(char::from_u32),
        };
        letter.ok_or_else(|| self.wrong_at(begin, "\\u wants four hex digits that are a character"))
    }

    fn hex(&mut self) -> Option<u32> {
        let digits =
            self.rest().get(..4).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }
}
