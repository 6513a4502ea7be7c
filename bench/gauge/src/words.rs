//! What a bench is told and says.

/// A line of figures.
#[expect(clippy::print_stdout, reason = "figures are the output of a bench")]
pub fn say(text: &str) {
    println!("{text}");
}

/// Why there are none.
#[expect(clippy::print_stderr, reason = "a bench is a program of its own")]
pub fn complain(text: &str) {
    eprintln!("{text}");
}

/// The word after another.
pub fn word<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == name)?;
    words.get(at + 1).map(String::as_str)
}
