//! `partage simulate`: what would happen to my keys?
//!
//! Reads a sample of keys, lets [`partage_service::whatif`] play the events with every scheme, times the lookups
//! (the core has no clock), and shows the outcome: a table and a few sentences for people, everything as
//! JSON for programs, one page with plots for both.

mod events;
mod findings;
mod form;
mod page;
mod plot;
mod progress;
mod table;

use crate::clock;
use crate::keys::{self, Columns, Keys, LeftOut, Wanted};
use crate::output::{self, Failure, Output};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::Key;
use partage_service::whatif::{self, Comparison, Item, Layout, Question, Sample, Scheme, WhatIfError};
use progress::Progress;
use std::path::PathBuf;

/// Simulate sharding schemes on a sample of keys, and compare them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Plain lines hold a key each, and after tabs, if at all, its weight and its bytes. A key that occurs twice
weighs twice, so a log of requests is a sample too. One line in a hundred may be unusable: such lines are left
out and counted.

Schemes: modulo, ring-TOKENS, rendezvous, jump, salted-WAYS, fixed-SHARDS+POLICY, hash-range-SHARDS+POLICY,
key-range-SHARDS+POLICY (cut by load), key-even-SHARDS (cut like an alphabet). Numbers and policies may be left
out. Policies are those of placement, and bounded_ring.

Example: partage simulate --keys samples/debian-bookworm-packages.jsonl.gz --field package --nodes 8")]
pub struct Args {
    /// File with the keys, or - for stdin; .gz is unpacked
    #[arg(long, value_name = "FILE")]
    keys: PathBuf,
    /// Number of nodes at the start; their names are n1, n2 …
    #[arg(long, value_name = "N")]
    nodes: usize,
    #[command(flatten)]
    columns: Columns,
    /// The column or field with the bytes of each key [default: the length of the key]
    #[arg(long, value_name = "NAME")]
    bytes: Option<String>,
    /// Capacities of the nodes: 2,1,1 in the order of the nodes, or n3=2 for one node [default: 1 for each]
    #[arg(long, value_name = "LIST")]
    capacity: Vec<String>,
    /// Number of zones to spread the nodes over, in turn
    #[arg(long, value_name = "Z")]
    zones: Option<u32>,
    /// Events to simulate, in order: join:2, leave:n3, grow:2, hot:KEY:50, hot:KEY:20%, hot::50
    /// [default: join:1, leave one in the middle, grow:2, hot::50, or hot::10% without weights]
    #[arg(long, value_name = "EVENT")]
    event: Vec<String>,
    /// Sharding schemes to compare, separated by commas [default: one of each kind]
    #[arg(long, value_name = "NAME", value_delimiter = ',', num_args = 1..)]
    scheme: Vec<String>,
    /// Hash function for the keys
    #[arg(long, value_name = "NAME", default_value = "xxh3-64")]
    hash: String,
    /// Seed of every random choice; the same seed gives the same answer
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// Do not measure lookups per second, so that the same input gives the same output, byte for byte
    #[arg(long)]
    no_timing: bool,
    /// Write an HTML page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What was asked and what came out, for all three ways to show it.
struct Answer {
    /// The file that the keys came from.
    keys: String,
    hash: HashFunction,
    seed: u64,
    /// What weighs: a column, a field, or nothing but the number of keys.
    weight: Option<String>,
    /// Whether bytes were given, so that what moves is counted in them.
    bytes: Option<String>,
    comparison: Comparison,
    /// Lookups in a second by each scheme; none when not timed.
    lookups_per_s: Vec<Option<f64>>,
    /// Lines of the keys that could not be used.
    left_out: LeftOut,
}

pub fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let (hash, schemes) = schemes(args)?;
    let nodes = events::nodes(args.nodes, &args.capacity, args.zones)?;
    let events = events::events(&args.event, args.nodes, args.zones)?;
    let wanted = Wanted { columns: args.columns.clone(), bytes: args.bytes.clone() };
    let mut progress = Progress::new(output.is_json());
    progress.on("reads the keys");
    let Keys { items, left_out } = keys::read(&args.keys, &wanted)?;
    // No flag says whether plain lines have weights; the lines show it.
    let weight = args.columns.weight.clone().or_else(|| weighs(&items).then(|| "weight".to_owned()));
    let events = if events.is_empty() {
        events::events(&events::usual(args.nodes, weight.is_some()), args.nodes, args.zones)?
    } else {
        events
    };
    let sample = Sample::new(items).map_err(failure)?;
    let timed: Vec<Key> = if args.no_timing { Vec::new() } else { some(&sample) };
    let question = Question { sample, nodes, events, schemes, hash, seed: args.seed };
    let comparison = whatif::compare_telling(question, |step| progress.step(&step)).map_err(failure)?;
    progress.on("times the lookups");
    let rate = |layout: &Layout| (!timed.is_empty()).then(|| lookups_per_s(layout, &timed));
    let lookups_per_s = comparison.outcomes.iter().map(|outcome| rate(&outcome.start)).collect();
    progress.end();
    let answer = Answer {
        keys: args.keys.display().to_string(),
        hash,
        seed: args.seed,
        weight,
        bytes: args.bytes.clone(),
        comparison,
        lookups_per_s,
        left_out,
    };
    show(args, &answer, output)
}

fn show(args: &Args, answer: &Answer, output: &mut Output) -> Result<(), Failure> {
    if let Some(path) = &args.html {
        std::fs::write(path, page::page(answer)).map_err(|error| {
            Failure::failed(format!("cannot write the page to {}: {error}", path.display()))
                .help("name a file in a folder that exists")
        })?;
        output::say(&format!("page written to {}", path.display()));
    }
    answer.left_out.told().iter().for_each(|told| output::say(&format!("warning: {told}")));
    if output.is_json() {
        return output.json(&form::form(answer));
    }
    output.text(&table::table(answer));
    findings::findings(answer).iter().for_each(|finding| output.text(&table::wrapped(finding)));
    Ok(())
}

fn schemes(args: &Args) -> Result<(HashFunction, Vec<Scheme>), Failure> {
    let hash: HashFunction =
        args.hash.parse().map_err(|error: partage_core::keyspace::hash::UnknownHash| {
            Failure::usage(format!("there is no hash function {:?}", error.name)).help(format!(
                "did you mean {}? There are: {}",
                error.nearest,
                HashFunction::ALL.map(HashFunction::name).join(", ")
            ))
        })?;
    if args.scheme.is_empty() {
        let usual = Scheme::usual(args.nodes).into_iter().map(|scheme| scheme.fitted(hash));
        return Ok((hash, usual.collect()));
    }
    let parse = |name: &String| {
        Scheme::parse(name, args.nodes).map_err(|error| {
            Failure::usage(&error).help(format!(
                "did you mean {}? There are: {}",
                error.nearest,
                Scheme::KINDS.join(", ")
            ))
        })
    };
    Ok((hash, args.scheme.iter().map(parse).collect::<Result<_, _>>()?))
}

fn weighs(items: &[Item]) -> bool {
    items.iter().any(|item| item.weight != 1.0)
}

/// What the caller asked for in vain is wrong usage; what the keys do not allow has failed.
fn failure(error: WhatIfError) -> Failure {
    match &error {
        WhatIfError::UnknownNode { node, known } => {
            let nearest =
                partage_core::base::suggest::nearest(node.as_str(), known.iter().map(String::as_str));
            let failure = Failure::usage(format!("there is no node {node} to leave"));
            failure.help(format!("did you mean {}? There are: {}", nearest.unwrap_or("n1"), known.join(", ")))
        }
        WhatIfError::NoKeys
        | WhatIfError::Weight { .. }
        | WhatIfError::Unplaced { .. }
        | WhatIfError::Presplit(_)
        | WhatIfError::Problem(_)
        | WhatIfError::Slots(_)
        | WhatIfError::Hashes(_)
        | WhatIfError::Keys(_) => Failure::failed(error),
        _ => Failure::usage(error),
    }
}

/// Keys that are looked up when timing: enough to miss the caches as real traffic does.
const TIMED_KEYS: usize = 100_000;

/// How long one scheme is timed at least.
const TIMED_MS: f64 = 20.0;

/// Keys from all over the sample, in an order that jumps about.
fn some(sample: &Sample) -> Vec<Key> {
    let items = sample.items();
    let count = items.len().min(TIMED_KEYS);
    // A stride without a factor in common with the count visits each key once.
    let stride = [7_919, 104_729, 1_299_709]
        .into_iter()
        .find(|prime| !items.len().is_multiple_of(*prime))
        .unwrap_or(1);
    (0..count).map(|i| items[i * stride % items.len()].key.clone()).collect()
}

/// On one core, the time to fetch the key included.
fn lookups_per_s(layout: &Layout, keys: &[Key]) -> f64 {
    let (mut lookups, mut seconds) = (0, 0.0);
    let mut rounds = 0;
    while seconds * 1_000.0 < TIMED_MS && rounds < 10_000 {
        let took = clock::time(|| {
            for key in keys {
                std::hint::black_box(layout.owner(key.as_bytes()));
            }
        });
        (lookups, seconds, rounds) = (lookups + keys.len(), seconds + took.as_secs_f64(), rounds + 1);
    }
    lookups as f64 / seconds.max(1e-9)
}
