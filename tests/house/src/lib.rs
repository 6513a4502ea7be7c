//! The rules of the house, as checks.
//!
//! Each finding says where, what, and how to mend it. Nothing is changed. Rules that the compiler or
//! clippy can hold are in `clippy.toml` and the root `Cargo.toml`; here is the rest: which crate may depend on
//! which, and which folder of `core`; what `core` may not touch, where the text of a module is, that no file is dead and no
//! name taken twice, how long files and comment lines may be, that no text points at nothing, and what subjects of commits
//! look like.
//!
//! Source is parsed (with syn), not searched with patterns, so a word in a comment or a string is no offence.
//! Macro bodies are only looked at as tokens: a rule broken by code that a macro writes is not seen.

pub mod commits;
pub mod dependencies;
pub mod duplicates;
pub mod glossary;
pub mod graph;
pub mod levels;
pub mod metrics;
pub mod modules;
pub mod source;
pub mod text;
pub mod tree;
