//! Names of types and modules that were pictures once, and the terms of the field that say what is meant.
//!
//! A reader who knows Kubernetes and etcd should not need a list beside the code. `docs/src/concepts.md` has the terms; these
//! words are refused in their place, alone or as a part of a name. A test may say "a stranger" in its sentence; a type may not.

use syn::visit::{self, Visit};

/// A word that is no term, and what to say instead.
const PICTURES: [(&str, &str); 18] = [
    ("book", "what it stores: a table, an index, a map store"),
    ("clerk", "what it does: a request path, a worker thread"),
    ("crew", "a test cluster, or what its processes are"),
    ("desk", "the state of a thread, or a connection"),
    ("doings", "tasks, actions"),
    ("errand", "a task, a request"),
    ("eyes", "an observer"),
    ("footing", "a session, a term"),
    ("hands", "actions, callbacks"),
    ("herald", "a notifier"),
    ("house", "a server, a process (the crate tests/house alone has the name)"),
    ("mind", "a decision loop"),
    ("sheet", "a record, a table"),
    ("shelf", "a map store, a cache"),
    ("stay", "an incarnation"),
    ("tenure", "ownership"),
    ("town", "a test cluster"),
    ("tray", "a queue"),
];

/// Every type or module of a file that is named by a picture.
pub fn findings(file: &str, text: &str) -> Vec<String> {
    let Ok(tree) = syn::parse_file(text) else { return Vec::new() };
    let mut names = Names::default();
    names.visit_file(&tree);
    let found = names.0.iter().filter_map(|(name, line)| Some((name, line, picture(name)?)));
    found
        .map(|(name, line, (word, instead))| {
            format!("{file}:{line}: `{name}` is named by a picture, {word:?}; say {instead}")
        })
        .collect()
}

fn picture(name: &str) -> Option<(&'static str, &'static str)> {
    words(name).iter().find_map(|word| PICTURES.into_iter().find(|(picture, _)| picture == word))
}

/// `LeaderState` and `leader_state` are `leader` and `state`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter != '_') {
            word.extend(letter.to_lowercase());
        }
    }
    words
}

#[derive(Default)]
struct Names(Vec<(String, usize)>);

impl Names {
    fn add(&mut self, name: &syn::Ident) {
        self.0.push((name.to_string(), name.span().start().line));
    }
}

impl<'a> Visit<'a> for Names {
    fn visit_item_struct(&mut self, item: &'a syn::ItemStruct) {
        self.add(&item.ident);
    }

    fn visit_item_enum(&mut self, item: &'a syn::ItemEnum) {
        self.add(&item.ident);
    }

    fn visit_item_union(&mut self, item: &'a syn::ItemUnion) {
        self.add(&item.ident);
    }

    fn visit_item_trait(&mut self, item: &'a syn::ItemTrait) {
        self.add(&item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'a syn::ItemType) {
        self.add(&item.ident);
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        self.add(&item.ident);
        visit::visit_item_mod(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_found_alone_and_as_a_part_of_a_name() {
        for bad in [
            "struct Town;",
            "mod map_shelf {}",
            "enum HandsOff {}",
            "mod a { trait Herald {} }",
            "type Desk = u8;",
        ] {
            let found = findings("a.rs", bad);
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
            assert!(found[0].starts_with("a.rs:1: ") && found[0].contains("; say "), "{}", found[0]);
        }
    }

    #[test]
    fn terms_are_fine() {
        for good in
            ["struct Handshake;", "mod bookkeeping {}", "struct Downtown;", "fn town() {}", "struct Stays;"]
        {
            assert!(findings("a.rs", good).is_empty(), "{good}");
        }
    }
}
