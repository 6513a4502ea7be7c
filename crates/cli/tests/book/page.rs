//! Pages of the book: their blocks, and whether what is printed is what they show.
//!
//! A block of `sh` is typed as it stands, and shows nothing. One of `console` has commands behind `$ `, which may go on behind
//! `> `, and below each of them lines that are among those that it prints, in this order. In these, `…` stands for anything; on
//! a line of its own, for any lines. A comment before a block, `<!-- varies: 3-17, t2 -->`, names words for which other ones are
//! printed: the same one wherever the word stands in the block. It is typed in place of the word in this block, and in later
//! ones that name the word, too.
//!
//! A line that begins with `error:` says that the command fails; any other command of a page has to succeed.

use super::shell::Shell;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(120);

/// Programs that a machine need not have: commands with them are left out there.
const MAY_BE_MISSING: [&str; 2] = ["redis-cli", "grpcurl"];

/// Python with the packages that `./test setup` installs, below the folder of its tools: it may be missing too.
pub const PYTHON: &str = "arrow/bin/python";

/// What was printed for words that vary.
type Printed = BTreeMap<String, String>;

/// A block of a page.
pub struct Block {
    /// The language of a fenced block, as Markdown names it.
    pub kind: String,
    pub text: String,
    /// Words for which another one may be printed.
    pub varying: Vec<String>,
}

pub fn blocks(page: &str) -> Vec<Block> {
    let (mut found, mut varying) = (Vec::new(), Vec::new());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let words = line.strip_prefix("<!-- varies:").and_then(|rest| rest.strip_suffix("-->"));
        if let Some(words) = words {
            varying = words.split(',').map(|word| word.trim().to_owned()).collect();
        } else if let Some(kind) = line.strip_prefix("```") {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let varying = std::mem::take(&mut varying);
            found.push(Block { kind: kind.to_owned(), text: text.join("\n"), varying });
        }
    }
    found
}

/// A command of a block, and what the page shows of what it prints.
pub struct Step {
    pub command: String,
    pub shows: String,
}

pub fn steps(block: &str) -> Vec<Step> {
    let step = |text: &str| {
        let mut lines = text.lines();
        let mut command = lines.next().unwrap_or_default().to_owned();
        let mut shows = Vec::new();
        for line in lines {
            match line.strip_prefix("> ") {
                Some(more) if shows.is_empty() => command += &format!("\n{more}"),
                _ => shows.push(line),
            }
        }
        Step { command, shows: shows.join("\n") }
    };
    block.trim_start_matches("$ ").split("\n$ ").map(step).collect()
}

/// The lines without widths and figures that are of the moment.
fn plain(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| {
        // What the shell itself says of a process that was killed; it does not begin a line for that.
        let line = line.split("bash: line ").next().unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        for at in 1..words.len() {
            let is_time =
                words[at - 1] == "for" && words.get(at + 1).is_some_and(|unit| unit.starts_with('s'));
            let is_count =
                words[at - 1] == "after" && words.get(at + 1).is_some_and(|unit| unit.starts_with("tries"));
            if is_time || is_count {
                words[at] = "N".to_owned();
            }
        }
        words.join(" ")
    });
    lines.filter(|line| !line.is_empty()).collect()
}

/// Where a text may be cut in two.
fn cuts(text: &str) -> impl Iterator<Item = usize> {
    (0..=text.len()).filter(move |at| text.is_char_boundary(*at))
}

/// What the words that vary are in a printed line, if the line is that of the book.
fn fits(book: &str, said: &str, varying: &[String], known: &Printed) -> Option<Printed> {
    let Some(first) = book.chars().next() else { return said.is_empty().then(|| known.clone()) };
    if first == '…' {
        let rest = &book[first.len_utf8()..];
        return cuts(said).find_map(|at| fits(rest, &said[at..], varying, known));
    }
    let Some(word) = varying.iter().find(|word| book.starts_with(word.as_str())) else {
        return fits(&book[first.len_utf8()..], said.strip_prefix(first)?, varying, known);
    };
    let rest = &book[word.len()..];
    if let Some(value) = known.get(word) {
        return fits(rest, said.strip_prefix(value.as_str())?, varying, known);
    }
    let is_word = |at: &usize| !said[..*at].contains(char::is_whitespace);
    cuts(said).skip(1).take_while(is_word).find_map(|at| {
        let mut known = known.clone();
        known.insert(word.clone(), said[..at].to_owned());
        fits(rest, &said[at..], varying, &known)
    })
}

/// What the words that vary are in what was printed, if all lines of the book are among its lines, in that order.
fn shown(said: &str, book: &str, varying: &[String], known: &Printed) -> Option<Printed> {
    let (said, mut known) = (plain(said), known.clone());
    let mut rest = said.iter();
    // A line of its own stands for lines, of which there may be any more in any case.
    for line in plain(book).into_iter().filter(|line| line != "…") {
        let found = rest.find_map(|other| fits(&line, other, varying, &known));
        known = found?;
    }
    Some(known)
}

/// Whether all lines of the book are among those that were printed, in that order.
pub fn shows(said: &str, book: &str) -> bool {
    shown(said, book, &[], &Printed::new()).is_some()
}

/// What changes nothing may be looked at again.
pub fn only_looks(command: &str) -> bool {
    let looks = [
        "partage node list",
        "partage shard list",
        "partage shard show",
        "partage status",
        "partage plan list",
        "partage explain",
        "partage shuffle bounds",
        "partage shuffle list",
        "partage table check",
        "partage table feed",
        "partage table get",
        "partage table index list",
        "partage table index query",
        "partage table list",
        "partage table scan",
        "partage table show",
        "curl -s",
        "grep ",
    ];
    let may_change = command.contains(" -X ") || (command.contains(" -d ") && !command.contains("curl -sG"));
    let is_get = command.starts_with("redis-cli ") && command.contains(" get ");
    !(may_change || command.contains(" | partage"))
        && (looks.iter().any(|begin| command.starts_with(begin))
            || command.starts_with("for fruit in")
            || is_get)
}

/// Whether the machine does not have the program of a command, and need not have it.
fn is_left_out(command: &str) -> bool {
    let program = command.split(' ').next().unwrap_or_default();
    let may_be_missing = MAY_BE_MISSING.contains(&program) || program.ends_with(PYTHON);
    may_be_missing && Command::new(program).arg("--version").output().is_err()
}

/// A command, with what was printed for the words that vary in place of these.
fn with_printed(command: &str, varying: &[String], [known, before]: [&Printed; 2]) -> String {
    varying.iter().fold(command.to_owned(), |command, word| {
        match known.get(word).or_else(|| before.get(word)) {
            Some(value) => command.replace(word.as_str(), value),
            None => command,
        }
    })
}

/// Types a command until it shows what the page does; says what the words that vary are.
fn follow(shell: &mut Shell, command: &str, step: &Step, varying: &[String], known: &Printed) -> Printed {
    let end = Instant::now() + PATIENCE;
    let is_to_fail = step.shows.lines().any(|line| line.starts_with("error:"));
    loop {
        let (said, code) = shell.types(command, "2>&1");
        let found = shown(&said, &step.shows, varying, known).filter(|_| (code != 0) == is_to_fail);
        if let Some(found) = found {
            return found;
        }
        let more = only_looks(command) && Instant::now() < end;
        assert!(more, "$ {command}\n{said}\nexit code {code}. The book has:\n{}", step.shows);
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Types all blocks of a page in their order, and gives the number of commands of which the page shows what they print.
pub fn type_page(shell: &mut Shell, page: &str) -> usize {
    let (mut before, mut count) = (Printed::new(), 0);
    for Block { kind, text, varying } in blocks(page) {
        let mut known = Printed::new();
        match kind.as_str() {
            "sh" => {
                let script = with_printed(&text, &varying, [&known, &before]);
                let (_, code) = shell.types(&script, ">/dev/null 2>&1");
                assert_eq!(code, 0, "{script}");
            }
            "console" => {
                for step in steps(&text).iter().filter(|step| !is_left_out(&step.command)) {
                    let command = with_printed(&step.command, &varying, [&known, &before]);
                    known = follow(shell, &command, step, &varying, &known);
                    count += 1;
                }
            }
            other => assert!(["text", "json", "python"].contains(&other), "{other}: {text}"),
        }
        before.extend(known);
    }
    count
}

#[test]
fn a_page_says_what_varies_and_what_was_printed_for_it_is_typed() {
    let page = "Text\n<!-- varies: 3-17, t2 -->\n```console\n$ put a\n> b\nversion 3-17\n$ get a\n```\n```sh\nrun\n```\n";
    let found = blocks(page);
    assert_eq!((found.len(), found[0].kind.as_str(), found[1].kind.as_str()), (2, "console", "sh"));
    assert_eq!((found[0].varying.len(), found[1].varying.len()), (2, 0));
    let steps = steps(&found[0].text);
    assert_eq!((steps[0].command.as_str(), steps[0].shows.as_str()), ("put a\nb", "version 3-17"));
    assert_eq!((steps.len(), steps[1].command.as_str(), steps[1].shows.as_str()), (2, "get a", ""));

    let varying = &found[0].varying;
    let none = Printed::new();
    let known = shown("more\nversion 1-2, of  t1\n", "version 3-17, … t2", varying, &none).unwrap();
    assert_eq!(known, Printed::from([("3-17".into(), "1-2".into()), ("t2".into(), "t1".into())]));
    assert_eq!(with_printed("get --at-least 3-17", varying, [&none, &known]), "get --at-least 1-2");
    assert!(
        shown("version 1-2 and 1-3", "version 3-17 and 3-17", varying, &none).is_none(),
        "one word, one value"
    );
    assert!(shown("version 1 2", "version 3-17", varying, &none).is_none(), "a word has no spaces");
    assert!(shows("a\nb\nc", "a\nc") && !shows("a\nb", "b\na"));
}
