//! What any text may contain: links that lead somewhere, and no path of one person's machine.
//!
//! Markdown is parsed (with pulldown-cmark), so a link in a code block is not followed. Links to other sites
//! are not tried: the suite runs without a network.

use std::collections::BTreeSet;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Beginnings of absolute paths that exist on some builder's machine only.
const MACHINE_PATHS: [&str; 3] = [concat!("/", "work/"), concat!("/", "root/"), concat!("/", "tmp/tgt")];

/// Every absolute path of one machine in the text.
pub fn machine_path_findings(file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for path in MACHINE_PATHS {
            let begins = line.match_indices(path).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || "._-~}/".contains(c))
            });
            if begins {
                found.push(format!(
                    "{file}:{}: names `{path}`, a path of one machine; write it relative to the checkout",
                    number + 1
                ));
            }
        }
    }
    found
}

/// Letters that numbers of invariants and requirements begin with.
const NUMBER_LETTERS: &str = "ABCDKLMORSTWZ";

/// The numbers of invariants and requirements that a text names as words of their own, such as D7.
pub fn numbers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| {
        let (letter, number) = word.split_at_checked(1).unwrap_or_default();
        let is_number = (1..=2).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number && !number.starts_with('0') && NUMBER_LETTERS.contains(letter)
    })
}

/// The numbers in comments and at the beginnings of the names of tests that the book does not explain.
pub fn number_findings(file: &str, text: &str, explained: &BTreeSet<&str>) -> Vec<String> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let comment = line.split_once("//").map_or("", |(_, comment)| comment);
        let name = line.split_once("fn ").map_or("", |(_, name)| name).to_ascii_uppercase();
        let words = name.rsplit_once('_').map_or("", |(words, _)| words);
        let of_name = words.split('_').take_while(|word| numbers(word).next().is_some());
        found.extend(numbers(comment).chain(of_name).filter(|number| !explained.contains(number)).map(
            |number| {
                format!(
                    "{file}:{}: {number} has no row in docs/src/invariants.md; add one, or say it in words",
                    at + 1
                )
            },
        ));
    }
    found
}

/// What a page points at, and what can be pointed at in it.
#[derive(Debug, Default)]
pub struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
    codes: Vec<String>,
}

impl Page {
    /// Reads the links and the headings of a Markdown text.
    pub fn parse(text: &str) -> Page {
        let mut page = Page::default();
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors.extend(heading.take().map(|h| anchor(&h)));
                }
                Event::Text(words) | Event::Code(words) if heading.is_some() => {
                    heading.get_or_insert_default().push_str(&words);
                }
                Event::Code(words) => page.codes.push(words.into_string()),
                _ => {}
            }
        }
        page
    }

    /// The links that stay in the checkout, as (path relative to its root, anchor or empty).
    pub fn inner_links(&self, file: &str) -> Vec<(String, String)> {
        let outside = |l: &&String| l.contains("://") || l.starts_with("mailto:");
        let inner = self.links.iter().filter(|l| !outside(l));
        inner
            .map(|link| {
                let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
                let target = if path.is_empty() { file.to_owned() } else { resolve(file, path) };
                (target, anchor.to_owned())
            })
            .collect()
    }

    /// What is written here as code and reads like the name of a test: a sentence in lower case, with `_`.
    pub fn test_names(&self) -> impl Iterator<Item = &str> {
        let sentence = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        self.codes
            .iter()
            .map(String::as_str)
            .filter(move |w| w.chars().all(sentence) && w.matches('_').count() >= 2)
    }

    /// What is written here as code and reads like a path: with a `/` or the ending of a rust file, without blanks.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let of_a_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        self.codes
            .iter()
            .map(String::as_str)
            .filter(move |w| w.chars().all(of_a_path) && (w.contains('/') || w.ends_with(".rs")))
    }

    /// True when a heading of this page has this anchor.
    pub fn has_anchor(&self, anchor: &str) -> bool {
        self.anchors.contains(anchor)
    }
}

/// A link of the page `file`, as a path from the root. A `..` beyond the root stays, and so matches nothing.
fn resolve(file: &str, link: &str) -> String {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." | "" => {}
            ".." if parts.last().is_some_and(|p| *p != "..") => {
                parts.pop();
            }
            other => parts.push(other),
        }
    }
    parts.join("/")
}

/// The anchor that a heading gets on the usual hosts and in mdBook.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_one_machine_are_found_with_their_line() {
        let path = MACHINE_PATHS[0];
        let found = machine_path_findings("README.md", &format!("fine\nsee {path}main\n"));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("README.md:2: names"), "{}", found[0]);
        assert_eq!(machine_path_findings("a", &format!("\"{}x\"", MACHINE_PATHS[1])).len(), 1);
        for fine in [format!("..{path}x"), format!("net{path}x"), format!("${{HOME}}{path}x")] {
            assert!(machine_path_findings("a", &fine).is_empty(), "{fine}");
        }
    }

    #[test]
    fn numbers_without_a_row_are_found_in_comments_and_names_of_tests() {
        let explained = numbers("| A11, D7 | what they ask for |").collect();
        let text = "/// As D7 and D8 say; C0 is a control.\nlet a = K2; // (A11, T6)\nfn d7_l1_r2d2_is_not_one() {}\n";
        let found = number_findings("a.rs", text, &explained);
        let named: Vec<_> = found.iter().filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!(named, ["D8", "T6", "L1"], "{found:?}");
    }

    #[test]
    fn links_are_resolved_from_their_page() {
        let page =
            Page::parse("[a](../b.md#c-d) ![p](p.png) <https://x.y> [m](mailto:a@b) [h](#top)\n\n`[no](no)`");
        let of = |t: &str, a: &str| (t.to_owned(), a.to_owned());
        assert_eq!(
            page.inner_links("docs/src/a.md"),
            [of("docs/b.md", "c-d"), of("docs/src/p.png", ""), of("docs/src/a.md", "top")]
        );
        assert_eq!(Page::parse("[a](../../x)").inner_links("docs/a.md"), [of("../x", "")]);
    }

    #[test]
    fn names_of_tests_are_told_from_other_code() {
        let page =
            Page::parse("`a_b_c`, `wire`, `./test a_b_c`, `a_b`\n\n| a |\n|---|\n| `m6_in_a_table` |\n");
        assert_eq!(page.test_names().collect::<Vec<_>>(), ["a_b_c", "m6_in_a_table"]);
    }

    #[test]
    fn paths_are_told_from_other_code() {
        let page =
            Page::parse("`map/`, `wire`, `brake.rs`, [`a/b.rs`](c), `load/serve x`, `a::b`, `POST /x`");
        assert_eq!(page.paths().collect::<Vec<_>>(), ["map/", "brake.rs", "a/b.rs"]);
    }

    #[test]
    fn headings_are_anchors() {
        let page = Page::parse("# Keys, and `Ranges`\n\n```\n# not one\n```\n");
        assert!(page.has_anchor("keys-and-ranges"));
        assert!(!page.has_anchor("not-one"));
    }
}
