//! Which metrics a source registers, and which ones a page names.
//!
//! A metric is registered by a call, by a call of a function that registers, or in a list of names: each has its name as a text,
//! and behind it what it counts, as a text that begins with a capital letter or a digit, or as a variable `help`. So a name is
//! found by the two beside each other, and labels are not taken for names.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};

/// What kinds and units add to a name.
const ENDS: [&str; 5] = ["_total", "_bucket", "_count", "_seconds", "_bytes"];

/// The word that names begin with where they are written whole.
const WHOLE: &str = "partage_worker_";

/// Kinds of metrics, which stand before what is counted where a page is written by hand.
const KINDS: [&str; 3] = ["counter", "gauge", "histogram"];

/// What a source names that has to do with metrics.
const SIGNS: [&str; 2] = ["prometheus_client", "# TYPE"];

/// The name without what its kind and unit add.
pub fn bare(name: &str) -> String {
    ENDS.iter().fold(name.to_owned(), |name, end| name.strip_suffix(end).unwrap_or(&name).to_owned())
}

/// The names in a page that begin so, without that, and bare.
pub fn named(page: &str, begin: &str) -> BTreeSet<String> {
    let words = page.split(|c: char| !(c.is_ascii_lowercase() || c == '_' || c == '…'));
    let names = words.filter_map(|word| word.strip_prefix(begin));
    names.filter(|name| !name.is_empty()).map(bare).collect()
}

/// The names that a source registers.
pub fn registered(source: &str) -> BTreeSet<String> {
    if !SIGNS.iter().any(|sign| source.contains(sign)) {
        return BTreeSet::new();
    }
    let mut tokens = Vec::new();
    flatten(source.parse().unwrap_or_default(), &mut tokens);
    let mut names: BTreeSet<String> = tokens
        .iter()
        .filter_map(text)
        .filter_map(|text| Some(text.strip_prefix(WHOLE)?.to_owned()))
        .collect();
    for three in tokens.windows(3) {
        let [name, TokenTree::Punct(comma), help] = three else { continue };
        let Some(name) = text(name).filter(|name| is_name(name)) else { continue };
        if comma.as_char() == ',' && is_help(help) {
            names.insert(name);
        }
    }
    names
}

/// All tokens in their order, without what encloses them.
fn flatten(tokens: TokenStream, flat: &mut Vec<TokenTree>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => flatten(group.stream(), flat),
            other => flat.push(other),
        }
    }
}

/// What stands in quotes.
fn text(token: &TokenTree) -> Option<String> {
    let TokenTree::Literal(literal) = token else { return None };
    Some(literal.to_string().strip_prefix('"')?.strip_suffix('"')?.to_owned())
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && !KINDS.contains(&text) && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

fn is_help(token: &TokenTree) -> bool {
    match token {
        TokenTree::Ident(word) => word == "help",
        other => text(other).is_some_and(|text| {
            text.contains(' ') && text.starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit())
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn names_are_found_however_they_are_registered() {
        let source = r#"
            use prometheus_client::registry::Registry;
            fn all(registry: &mut Registry) {
                registry.register("writes", "Writes that came", one);
                registry.register_with_unit("age", help, Unit::Seconds, age);
                gauge(registry, busiest, "replica_leads", "1 while it leads", |queue| 1);
                for (name, help) in [("log_bytes", "Log that is kept")] {}
                family.get_or_create(&[("reason", "too_many")]);
                page.head("partage_worker_up", "gauge", "Whether it is up");
            }
        "#;
        assert_eq!(registered(source), set(&["writes", "age", "replica_leads", "log_bytes", "up"]));
    }

    #[test]
    fn names_of_a_page_are_those_behind_the_word() {
        let page =
            "| `partage_table_writes_total`, `partage_table_age_seconds` | `…_door_refused_total{reason}` |";
        assert_eq!(named(page, "partage_table_"), set(&["writes", "age"]));
        assert_eq!(named(page, "…_"), set(&["door_refused"]));
    }
}
