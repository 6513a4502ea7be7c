//! Every parser of files and messages, given inputs that no program wrote: it may refuse, and it may not panic, hang or take
//! memory that the input does not have.
//!
//! The seeds are accepted, and some thousand mutants of each are survived: `cargo test -p fuzz`.
//!
//! A target takes bytes and says whether they were accepted. Its seeds are real files and messages, from `vectors/`,
//! `examples/config` and our own writers.

#![forbid(unsafe_code)]

mod mutate;
mod seeds;
mod targets;

pub use mutate::Mutator;

/// A parser, and inputs to begin with.
#[derive(Clone, Copy)]
pub struct Target {
    /// As it is named on the command line.
    pub name: &'static str,
    /// Takes bytes; whether they were accepted.
    pub parse: fn(&[u8]) -> bool,
    /// Inputs that the parser accepts, of which mutants are made.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All parsers that are tested.
pub const TARGETS: [Target; 13] = [
    Target { name: "sequence-file", parse: targets::sequence_file, seeds: seeds::sequence_files },
    Target { name: "parquet", parse: targets::parquet, seeds: seeds::parquet },
    Target { name: "csv", parse: targets::csv, seeds: seeds::csv },
    Target { name: "json-lines", parse: targets::json_lines, seeds: seeds::json_lines },
    Target { name: "store-file", parse: targets::store_file, seeds: seeds::store_files },
    Target { name: "journal", parse: targets::journal, seeds: seeds::metadata },
    Target { name: "metadata", parse: targets::metadata, seeds: seeds::metadata },
    Target {
        name: "coordination-state",
        parse: targets::coordination_state,
        seeds: seeds::coordination_state,
    },
    Target { name: "manifest", parse: targets::manifest, seeds: seeds::manifests },
    Target { name: "presence", parse: targets::presence, seeds: seeds::presence },
    Target { name: "config", parse: targets::config, seeds: seeds::configs },
    Target { name: "worker-json", parse: targets::worker_json, seeds: seeds::worker_json },
    Target { name: "backup", parse: targets::backup, seeds: seeds::backups },
];

/// The target of that name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
