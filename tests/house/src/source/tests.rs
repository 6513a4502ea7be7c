//! Small files that break one rule each, and their neighbours that do not.

use super::*;

fn parse(text: &str) -> Source {
    Source::parse("a.rs", text).unwrap()
}

fn core(text: &str) -> Vec<String> {
    parse(text).core_findings("crates/core/src/a.rs")
}

#[test]
fn core_may_not_touch_clocks_files_threads_or_luck() {
    for bad in [
        "use std::time::Duration;",
        "use std::{fmt, time::Instant};",
        "use std::time;",
        "use std::env::*;",
        "fn f() { let _ = std::fs::read(\"x\"); }",
        "struct S { at: std::net::SocketAddr }",
        "fn f() { assert!(std::thread::panicking()); }",
        "async fn f() {}",
        "trait T { async fn f(); }",
        "struct S; impl S { async fn f() {} }",
        "fn f() { let _ = async { 1 }; }",
        "use tokio as t;",
        "fn f() -> u8 { rand::random() }",
        "use std::collections::HashMap;",
        "fn f(m: &std::collections::HashSet<u8>) {}",
        "mod inner { use std::io::Write; }",
    ] {
        let found = core(bad);
        assert_eq!(found.len(), 1, "{bad}: {found:?}");
        assert!(found[0].starts_with("crates/core/src/a.rs:1: `"), "{}", found[0]);
        assert!(found[0].contains(" in core; "), "says the way out: {}", found[0]);
    }
}

#[test]
fn core_may_speak_of_them_and_tests_may_use_them() {
    for good in [
        "//! std::time is not used here\n/* tokio */ const A: &str = \"std::fs\";",
        "use crate::time::Millis; fn f(t: crate::time::Millis) {}",
        "use std::collections::BTreeMap;",
        "#[cfg(test)] mod tests { use std::time::Instant; async fn f() {} }",
        "#[cfg(all(test, unix))] use std::collections::HashMap;",
        "#[test] fn t() { std::thread::yield_now(); }",
        "struct Randomness; fn operand() {}",
    ] {
        assert_eq!(core(good), Vec::<String>::new(), "{good}");
    }
    assert_eq!(core("#[cfg(not(test))] use std::time::Instant;").len(), 1);
    assert_eq!(core("#[cfg(any(test, feature = \"x\"))] use std::time::Instant;").len(), 1);
}

#[test]
fn forms_are_derived_in_wire_and_cli_only() {
    let forms = |file: &str, text: &str| parse(text).form_findings(file);
    let plain = "#[derive(Debug, Serialize)] struct S;";
    assert!(forms("crates/coordinator/src/a.rs", plain)[0].contains("derives Serialize"));
    assert!(forms("crates/wire/src/a.rs", plain).is_empty());
    assert!(forms("crates/cli/src/config.rs", plain).is_empty());
    assert_eq!(forms("crates/core/src/a.rs", "#[derive(::prost::Message)] struct S;").len(), 1);
    assert_eq!(
        forms("crates/core/src/a.rs", "#[cfg_attr(feature = \"f\", derive(serde::Deserialize))] struct S;")
            .len(),
        1
    );
    assert!(forms("crates/core/src/a.rs", "#[derive(Debug, Clone)] struct Message;").is_empty());
}

#[test]
fn connections_past_the_dialer_are_found() {
    let dials = |file: &str, text: &str| parse(text).dial_findings(file).len();
    for opened in [
        "fn f() { TcpStream::connect(a); }",
        "fn f() { tokio::net::TcpStream::connect(a); }",
        "fn f() { tokio::select! { s = TcpStream::connect(a) => s, } }",
        "fn f() { HttpConnector::new(); }",
        "fn f() { tonic::transport::Endpoint::from_shared(a); }",
    ] {
        assert_eq!(dials("crates/router/src/a.rs", opened), 1, "{opened}");
        assert_eq!(dials("crates/dialer/src/lib.rs", opened), 0);
        let tested = format!("#[cfg(test)] mod tests {{ {opened} }}");
        assert_eq!(dials("crates/router/src/a.rs", &tested), 0);
    }
    assert_eq!(dials("crates/router/src/a.rs", "fn f(s: TcpStream, h: HttpConnector) { s.connect(); }"), 0);
}

#[test]
fn long_functions_are_named_with_their_line() {
    let body = "    let _ = 1;\n".repeat(FUNCTION_LINES - 2);
    let fits = format!("\nfn f() {{\n{body}}}\n");
    assert!(parse(&fits).size_findings("a.rs", &fits).is_empty());
    for (head, tail) in
        [("fn f() {", "}"), ("struct S; impl S { fn f() {", "} }"), ("trait T { fn f() {", "} }")]
    {
        let long = format!("\n{head}\n{body}let _ = 2;\n{tail}\n");
        let found = parse(&long).size_findings("a.rs", &long);
        assert_eq!(found.len(), 1, "{head}");
        assert!(found[0].starts_with("a.rs:2: fn f has 101 lines"), "{}", found[0]);
    }
    let test = format!("#[cfg(test)]\nmod tests {{\nfn f() {{\n{body}{body}}}\n}}\n");
    assert!(parse(&test).size_findings("a.rs", &test).is_empty());
}

#[test]
fn long_files_are_measured_without_their_tests() {
    let consts = |n: usize| (0..n).map(|i| format!("const C{i}: u8 = 0;\n")).collect::<String>();
    let long = consts(FILE_LINES + 1);
    assert!(parse(&long).size_findings("a.rs", &long)[0].contains("601 lines without its tests"));
    let tested = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", consts(FILE_LINES), consts(300));
    assert!(parse(&tested).size_findings("a.rs", &tested).is_empty());
}

#[test]
fn files_that_only_tests_see_are_found() {
    let source = parse("#[cfg(test)] mod tests; #[cfg(test)] mod golden; mod real;");
    assert_eq!(
        source.test_files("crates/core/src/map.rs"),
        [
            "crates/core/src/map/tests.rs",
            "crates/core/src/map/tests/",
            "crates/core/src/map/golden.rs",
            "crates/core/src/map/golden/"
        ]
    );
    assert_eq!(source.test_files("crates/core/src/lib.rs")[0], "crates/core/src/tests.rs");
}

#[test]
fn a_file_opens_with_its_purpose() {
    assert!(opening_finding("a.rs", "//! Keys.\nuse x;").is_none());
    assert!(opening_finding("a.rs", "\n//! Keys.").is_none());
    assert!(opening_finding("a.rs", "// Keys.").unwrap().starts_with("a.rs:1: "));
    assert!(opening_finding("a.rs", "use x;\n//! late").is_some());
    assert!(opening_finding("a.rs", "").is_some());
}

#[test]
fn a_doc_comment_is_no_question() {
    let findings = |text: &str| question_findings("a.rs", text).len();
    assert_eq!(findings("    /// Which.\n    node: u8,\n    /// Why not.\n    why: u8,"), 2);
    assert_eq!(findings("/// Which node\nnode: u8,"), 1);
    assert_eq!(findings("/// The node that left.\n/// Which node this is.\n/// Whether it left."), 0);
    assert_eq!(findings("/// It says, of each node,\n/// why.\nnode: u8, // Which."), 0);
}

#[test]
fn what_does_not_parse_is_a_finding_not_a_pass() {
    let error = Source::parse("a.rs", "fn f( {").unwrap_err();
    assert!(error.starts_with("a.rs:1: does not parse"), "{error}");
}

#[test]
fn long_comment_lines_are_found_and_rows_of_tables_are_not() {
    let long = "a ".repeat(70);
    let text = format!(
        "//! {long}\n    /// {long}\n// {long}\n//! | {long} |\n    /// | {long} |\nlet a = 1; // {long}\n"
    );
    let found = comment_findings("a.rs", &text);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[1].starts_with("a.rs:2: a comment line of 148 columns, more than 130"), "{}", found[1]);
    assert!(comment_findings("a.rs", &format!("// {}\n", "ä".repeat(127))).is_empty(), "columns, not bytes");
    assert_eq!(comment_findings("a.rs", &format!("// {}\n", "a".repeat(128))).len(), 1);
}

#[test]
fn public_types_are_those_that_other_crates_could_name() {
    let source = parse(
        "pub struct A; pub enum B {} pub trait C {} pub type D = u8; pub(crate) struct E; struct F;\n\
         mod inner { pub union G { a: u8 } }\n\
         #[cfg(test)] pub struct H;",
    );
    let found: Vec<_> = source.public_types().collect();
    assert_eq!(found, [("A", 1), ("B", 1), ("C", 1), ("G", 2)]);
}
