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

/// Checks that every flag among the words is one that the usage names. A flag that is mistyped would otherwise begin a run of
/// many minutes without what it asks for.
///
/// # Errors
/// The usage, and which flag it does not name.
pub fn check_flags(words: &[String], usage: &str) -> Result<(), String> {
    let known = |flag: &str| usage.split_ascii_whitespace().any(|word| word.trim_matches(['[', ']']) == flag);
    match words.iter().find(|word| word.starts_with("--") && !known(word)) {
        Some(flag) if flag == "--help" => Err(usage.to_owned()),
        Some(flag) => Err(format!("there is no flag {flag}: {usage}")),
        None => Ok(()),
    }
}

/// The word after another.
pub fn word<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == name)?;
    words.get(at + 1).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: &str = "bench [a | b] [--quick] [--folder FOLDER]";

    fn checked(words: &[&str]) -> Result<(), String> {
        check_flags(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), USAGE)
    }

    #[test]
    fn a_flag_that_the_usage_does_not_name_is_an_error() {
        assert_eq!(checked(&["a", "--folder", "f", "--quick"]), Ok(()));
        assert_eq!(checked(&["a", "--quik"]), Err(format!("there is no flag --quik: {USAGE}")));
        assert_eq!(checked(&["--help"]), Err(USAGE.to_owned()));
    }
}
