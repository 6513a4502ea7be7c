//! What a rust file may contain: how long, opened how, leaning on what.
//!
//! A file is parsed once into a [`Source`], a short list of facts with their lines; each rule is a question
//! to those facts. What only tests see (`#[cfg(test)]`, `#[test]`) is left out of every fact, so that a test
//! may be long, use a clock, or print.

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Lines of a file that fit in a head, tests not counted.
pub const FILE_LINES: usize = 600;

/// Lines of a function, from `fn` to the closing brace. Clippy warns earlier, at 70 without comments.
pub const FUNCTION_LINES: usize = 100;

/// Columns of a comment line; rows of tables may be longer.
pub const COMMENT_COLUMNS: usize = 130;

/// Paths that `core` never names, and what to do instead.
const CORE_NEVER: [(&str, &str); 14] = [
    ("std::time", "time is an argument: partage_core::base::time::Millis"),
    ("core::time", "time is an argument: partage_core::base::time::Millis"),
    ("std::fs", "core does no I/O; the caller reads and hands the bytes in"),
    ("std::io", "core does no I/O; the caller reads and hands the bytes in"),
    ("std::net", "core does no I/O; an address is a string to it"),
    ("std::thread", "core runs on its caller's thread"),
    ("std::process", "core does not know the process"),
    ("std::env", "only cli reads the environment"),
    ("std::sync::mpsc", "core has no queues; return what is to be done"),
    ("tokio", "core does not wait; return a deadline"),
    ("futures", "core does not wait; return a deadline"),
    ("async_trait", "core does not wait; return a deadline"),
    ("rand", "a seed is an argument"),
    ("getrandom", "a seed is an argument"),
];

/// Names that `core` never uses, whatever their path.
const CORE_NEVER_NAMES: [(&str, &str); 5] = [
    ("HashMap", "its order differs between runs; use BTreeMap or a sorted Vec"),
    ("HashSet", "its order differs between runs; use BTreeSet or a sorted Vec"),
    ("RandomState", "differs at each start; use a hash of partage_core by name"),
    ("Instant", "time is an argument: partage_core::base::time::Millis"),
    ("SystemTime", "time is an argument: partage_core::base::time::Millis"),
];

/// Derives that make a network or stored form.
const FORM_DERIVES: [&str; 6] = ["Serialize", "Deserialize", "Message", "Oneof", "Enumeration", "ToSchema"];

/// Who may have such forms: `wire` owns them all, `cli` has its configuration file and its `--json`, and `shuffle-flight` the
/// bodies of Arrow Flight, which only a build with that feature has.
const MAY_DERIVE_FORMS: [&str; 3] = ["crates/wire/", "crates/cli/", "crates/shuffle-flight/"];

/// What opens connections, as it ends in a path.
const DIALS: [&str; 6] = [
    "TcpStream::connect",
    "UnixStream::connect",
    "HttpConnector::new",
    "Endpoint::from_shared",
    "Endpoint::from_static",
    "Endpoint::new",
];

/// Who may do so: `dialer` does it for all, and the backends of `coordination` are reached by their own clients.
const MAY_DIAL: [&str; 2] = ["crates/dialer/", "crates/coordination/"];

/// A word at a line.
#[derive(Debug, PartialEq, Eq)]
pub struct At {
    word: String,
    line: usize,
}

/// The facts about one file.
#[derive(Debug, Default)]
pub struct Source {
    paths: Vec<At>,
    waits: Vec<At>,
    derives: Vec<At>,
    functions: Vec<(At, usize)>,
    test_lines: usize,
    test_modules: Vec<String>,
    public_types: Vec<At>,
}

impl Source {
    /// Reads the facts out of the text of `file`. The error names the file and the line.
    pub fn parse(file: &str, text: &str) -> Result<Source, String> {
        let tree = syn::parse_file(text)
            .map_err(|e| format!("{file}:{}: does not parse: {e}", e.span().start().line))?;
        let mut source = Source::default();
        source.visit_file(&tree);
        Ok(source)
    }

    /// Files (or folders, ending in `/`) that only tests see, because of a `#[cfg(test)] mod name;` in `file`.
    pub fn test_files(&self, file: &str) -> Vec<String> {
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        let stem = name.trim_end_matches(".rs");
        let folder = match stem {
            "lib" | "main" | "mod" => folder.to_owned(),
            _ => format!("{folder}/{stem}"),
        };
        self.test_modules
            .iter()
            .flat_map(|m| [format!("{folder}/{m}.rs"), format!("{folder}/{m}/")])
            .collect()
    }

    /// Each path that begins in the root of its own crate, by `crate` or by as many `super` as the file lies `depth` modules
    /// below it: the module it goes to, and its line.
    pub fn of_this_crate(&self, depth: usize) -> impl Iterator<Item = (&str, usize)> {
        let up = "super::".repeat(depth);
        self.paths.iter().filter_map(move |at| {
            let below = at.word.strip_prefix("crate::").or_else(|| at.word.strip_prefix(&up))?;
            Some((below.split("::").next().unwrap_or(below), at.line))
        })
    }

    /// The names of the public structs, enums, unions and traits, with their lines.
    pub fn public_types(&self) -> impl Iterator<Item = (&str, usize)> {
        self.public_types.iter().map(|at| (at.word.as_str(), at.line))
    }

    /// Everything in a file of `core` that is not a pure decision.
    pub fn core_findings(&self, file: &str) -> Vec<String> {
        let waits = self
            .waits
            .iter()
            .map(|at| format!("{file}:{}: `{}` in core; return a deadline", at.line, at.word));
        let paths = self.paths.iter().filter_map(|at| {
            let by_path =
                CORE_NEVER.iter().find(|(p, _)| at.word == *p || at.word.starts_with(&format!("{p}::")));
            let by_name = || CORE_NEVER_NAMES.iter().find(|(n, _)| at.word.split("::").any(|s| s == *n));
            let (_, way_out) = by_path.or_else(by_name)?;
            Some(format!("{file}:{}: `{}` in core; {way_out}", at.line, at.word))
        });
        waits.chain(paths).collect()
    }

    /// Network and stored forms outside the crates that may have them.
    pub fn form_findings(&self, file: &str) -> Vec<String> {
        if MAY_DERIVE_FORMS.iter().any(|p| file.starts_with(p)) {
            return Vec::new();
        }
        let forms = self
            .derives
            .iter()
            .filter(|at| FORM_DERIVES.contains(&at.word.rsplit("::").next().unwrap_or("")));
        forms
            .map(|at| {
                format!(
                    "{file}:{}: derives {}; network and stored forms live in crates/wire, with their version and \
                     their conversion to the type used here",
                    at.line, at.word
                )
            })
            .collect()
    }

    /// Connections that are opened past the dialer.
    pub fn dial_findings(&self, file: &str) -> Vec<String> {
        if MAY_DIAL.iter().any(|p| file.starts_with(p)) {
            return Vec::new();
        }
        let dials =
            |at: &&At| DIALS.iter().any(|dial| at.word == *dial || at.word.ends_with(&format!("::{dial}")));
        self.paths
            .iter()
            .filter(dials)
            .map(|at| {
                format!(
                    "{file}:{}: `{}`; connections are opened by crates/dialer, with its time-outs",
                    at.line, at.word
                )
            })
            .collect()
    }

    /// A file or a function that no longer fits in a head.
    pub fn size_findings(&self, file: &str, text: &str) -> Vec<String> {
        let lines = text.lines().count().saturating_sub(self.test_lines);
        let file_too_long = (lines > FILE_LINES).then(|| {
            format!("{file}: {lines} lines without its tests, more than {FILE_LINES}; divide it by what it decides")
        });
        let functions = self.functions.iter().filter(|(_, lines)| *lines > FUNCTION_LINES).map(|(at, lines)| {
            format!(
                "{file}:{}: fn {} has {lines} lines, more than {FUNCTION_LINES}; name its steps as functions",
                at.line, at.word
            )
        });
        file_too_long.into_iter().chain(functions).collect()
    }

    fn note_use(&mut self, before: &str, tree: &syn::UseTree) {
        let join = |name: &syn::Ident| {
            if before.is_empty() { name.to_string() } else { format!("{before}::{name}") }
        };
        match tree {
            syn::UseTree::Path(p) => self.note_use(&join(&p.ident), &p.tree),
            syn::UseTree::Name(n) => {
                self.paths.push(At { word: join(&n.ident), line: n.ident.span().start().line })
            }
            syn::UseTree::Rename(r) => {
                self.paths.push(At { word: join(&r.ident), line: r.ident.span().start().line })
            }
            syn::UseTree::Glob(g) => {
                self.paths.push(At { word: before.to_owned(), line: g.star_token.span.start().line });
            }
            syn::UseTree::Group(g) => g.items.iter().for_each(|t| self.note_use(before, t)),
        }
    }

    fn note_function(&mut self, signature: &syn::Signature, end: usize) {
        let line = signature.fn_token.span.start().line;
        if signature.asyncness.is_some() {
            self.waits.push(At { word: "async fn".to_owned(), line });
        }
        self.functions.push((At { word: signature.ident.to_string(), line }, end + 1 - line));
    }
}

impl<'a> Visit<'a> for Source {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !attributes(item).iter().any(is_for_tests) {
            self.public_types.extend(public_type(item));
            return visit::visit_item(self, item);
        }
        let span = item.span();
        match item {
            syn::Item::Mod(m) if m.content.is_none() => self.test_modules.push(m.ident.to_string()),
            _ => self.test_lines += span.end().line + 1 - span.start().line,
        }
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.note_function(&item.sig, item.block.brace_token.span.close().end().line);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if !item.attrs.iter().any(is_for_tests) {
            self.note_function(&item.sig, item.block.brace_token.span.close().end().line);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        self.note_function(&item.sig, item.span().end().line);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.note_use("", &item.tree);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let words: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.paths.push(At { word: words.join("::"), line: path.span().start().line });
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'a syn::Macro) {
        note_tokens(item.tokens.clone(), &mut self.paths);
        visit::visit_macro(self, item);
    }

    fn visit_expr_async(&mut self, expr: &'a syn::ExprAsync) {
        self.waits.push(At { word: "async".to_owned(), line: expr.async_token.span.start().line });
        visit::visit_expr_async(self, expr);
    }

    fn visit_attribute(&mut self, attribute: &'a syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta
            && (list.path.is_ident("derive") || list.path.is_ident("cfg_attr"))
        {
            note_tokens(list.tokens.clone(), &mut self.derives);
        }
    }
}

/// The name of an item, if it is a public type.
fn public_type(item: &syn::Item) -> Option<At> {
    let (visibility, name) = match item {
        syn::Item::Struct(i) => (&i.vis, &i.ident),
        syn::Item::Enum(i) => (&i.vis, &i.ident),
        syn::Item::Union(i) => (&i.vis, &i.ident),
        syn::Item::Trait(i) => (&i.vis, &i.ident),
        _ => return None,
    };
    let is_public = matches!(visibility, syn::Visibility::Public(_));
    is_public.then(|| At { word: name.to_string(), line: name.span().start().line })
}

/// The paths in a run of tokens: `a :: b :: c` is one word.
fn note_tokens(tokens: TokenStream, found: &mut Vec<At>) {
    let mut colons = 0;
    for token in tokens {
        match token {
            TokenTree::Ident(name) => match found.last_mut().filter(|_| colons == 2) {
                Some(at) => at.word.push_str(&format!("::{name}")),
                None => found.push(At { word: name.to_string(), line: name.span().start().line }),
            },
            TokenTree::Group(group) => note_tokens(group.stream(), found),
            TokenTree::Punct(p) if p.as_char() == ':' => {
                colons += 1;
                continue;
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        colons = 0;
    }
}

fn is_for_tests(attribute: &syn::Attribute) -> bool {
    match &attribute.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string().replace(' ', "");
            condition == "test" || condition.starts_with("all(test,")
        }
        _ => false,
    }
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(i) => &i.attrs,
        syn::Item::Enum(i) => &i.attrs,
        syn::Item::Fn(i) => &i.attrs,
        syn::Item::Impl(i) => &i.attrs,
        syn::Item::Macro(i) => &i.attrs,
        syn::Item::Mod(i) => &i.attrs,
        syn::Item::Static(i) => &i.attrs,
        syn::Item::Struct(i) => &i.attrs,
        syn::Item::Trait(i) => &i.attrs,
        syn::Item::Type(i) => &i.attrs,
        syn::Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

/// Comment lines that do not fit in a window. A row of a table cannot be broken, so it may be longer.
pub fn comment_findings(file: &str, text: &str) -> Vec<String> {
    let is_row = |comment: &str| comment.trim_start_matches(['/', '!']).trim_start().starts_with('|');
    let comments = text.lines().enumerate().filter(|(_, line)| {
        let comment = line.trim_start();
        comment.starts_with("//") && !is_row(comment)
    });
    comments
        .map(|(at, line)| (at + 1, line.chars().count()))
        .filter(|(_, columns)| *columns > COMMENT_COLUMNS)
        .map(|(at, columns)| {
            format!("{file}:{at}: a comment line of {columns} columns, more than {COMMENT_COLUMNS}; wrap it")
        })
        .collect()
}

/// A file that does not begin by saying what it is for.
pub fn opening_finding(file: &str, text: &str) -> Option<String> {
    let opened = text.lines().find(|l| !l.trim().is_empty()).is_some_and(|l| l.starts_with("//!"));
    (!opened)
        .then(|| format!("{file}:1: does not begin with `//!`; say first what the file is for, and why so"))
}

/// Words that say nothing of an item by themselves, nor with one word behind them.
const QUESTIONS: [&str; 8] = ["Which", "Who", "Whose", "Where", "When", "Why", "How", "What"];

/// Doc comments of one question word, with one word behind it or none: a reader has to guess what is meant.
pub fn question_findings(file: &str, text: &str) -> Vec<String> {
    let is_comment = |line: &&str| line.starts_with("///") || line.starts_with("//!");
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_alone = |at: usize| {
        let next_to = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
        !next_to.filter_map(|at| lines.get(at)).any(is_comment)
    };
    let is_question = |line: &str| {
        let words: Vec<&str> =
            line.trim_start_matches(['/', '!']).trim().trim_end_matches('.').split(' ').collect();
        words.len() <= 2 && QUESTIONS.contains(&words[0])
    };
    let comments = lines.iter().enumerate().filter(|(_, line)| is_comment(line));
    comments
        .filter(|(at, line)| is_question(line) && is_alone(*at))
        .map(|(at, line)| format!("{file}:{}: `{line}` is a question; say with a noun what it is", at + 1))
        .collect()
}

#[cfg(test)]
mod tests;
