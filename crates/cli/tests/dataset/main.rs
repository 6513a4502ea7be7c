//! `partage dataset …` as its user sees it: the real binary, real files, a node on loopback.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of a process waits by the clock")]

mod disk;
mod rollback;
mod shop;
mod verbs;
mod waits;
