//! `partage check PATH`: is this state sound, and if not, what can be saved?
//!
//! PATH is the data directory of a coordinator that is stopped.

use crate::output::{Failure, Output, say};
use clap::Args;
use partage_coordination::embedded::salvage::{self, Report};
use partage_core::check;
use partage_core::cluster::Records;
use partage_wire::stored;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// `partage check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The data directory of a stopped coordinator
    path: PathBuf,
    /// Write what can be saved into this new directory, from which a coordinator can start
    #[arg(long, value_name = "DIR")]
    save_to: Option<PathBuf>,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Findings {
    sound: bool,
    files: Vec<FileFindings>,
    records: RecordCounts,
    /// Keys that may be older than what was lost.
    uncertain: Vec<String>,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct FileFindings {
    file: String,
    bytes: u64,
    good_records: u64,
    damage: Vec<DamageFinding>,
}

#[derive(Debug, Serialize)]
struct DamageFinding {
    offset: u64,
    what: String,
}

#[derive(Debug, Default, Serialize)]
struct RecordCounts {
    keyspaces: usize,
    shards: usize,
    nodes: usize,
    plans: usize,
}

impl CheckArgs {
    /// Runs it: done when everything is sound, failed when not.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let report = self.report()?;
        let findings = findings(&report);
        if output.is_json() {
            output.json(&findings)?;
        } else {
            lines(&findings).iter().for_each(|line| output.text(line));
        }
        if let Some(to) = &self.save_to {
            say(&format!(
                "what can be saved is in {}: start a coordinator with --data-dir there",
                to.display()
            ));
        }
        if findings.sound {
            return Ok(());
        }
        let failure = Failure::failed(format!("{} is not sound", self.path.display()));
        Err(match self.save_to {
            Some(_) => failure,
            None => failure.help("save what can be saved with --save-to NEW_DIR, or restore a backup"),
        })
    }

    fn report(&self) -> Result<Report, Failure> {
        if !self.path.is_dir() {
            let what =
                format!("{} is no directory: name the data directory of a coordinator", self.path.display());
            return Err(Failure::usage(what));
        }
        let report = match &self.save_to {
            Some(to) => salvage::salvage(&self.path, to),
            None => salvage::inspect(&self.path),
        };
        let report = report.map_err(Failure::failed)?;
        if report.files.is_empty() {
            let what = format!("{} holds no state of a coordinator", self.path.display());
            return Err(Failure::usage(what));
        }
        Ok(report)
    }
}

fn findings(report: &Report) -> Findings {
    let entries = report.entries.iter().map(|(key, entry)| (key.as_str(), &entry.value));
    let ours = entries.filter(|(key, _)| stored::ROOTS.iter().any(|root| is_below(key, root)));
    let (records, mut problems) = match stored::read(ours) {
        Ok(recovered) => (recovered.records, Vec::new()),
        Err(error) => (Records::default(), vec![error.to_string()]),
    };
    for (_, map) in &records.keyspaces {
        let of = |finding| format!("keyspace {}: {finding}", map.keyspace());
        problems.extend(check::map(map).into_iter().map(of));
    }
    Findings {
        sound: report.is_sound() && problems.is_empty(),
        files: report.files.iter().map(file_findings).collect(),
        records: RecordCounts {
            keyspaces: records.keyspaces.len(),
            shards: records.keyspaces.iter().map(|(_, map)| map.len()).sum(),
            nodes: records.nodes.len(),
            plans: records.plans.len(),
        },
        uncertain: report.uncertain.iter().map(ToString::to_string).collect(),
        problems,
    }
}

fn is_below(key: &str, root: &str) -> bool {
    key.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn file_findings(file: &salvage::FileReport) -> FileFindings {
    let damage = file.damage.iter().map(|d| DamageFinding { offset: d.offset, what: d.what.to_string() });
    FileFindings {
        file: name(&file.path),
        bytes: file.bytes,
        good_records: file.good_records,
        damage: damage.collect(),
    }
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

fn lines(findings: &Findings) -> Vec<String> {
    let mut lines = Vec::new();
    for file in &findings.files {
        lines.push(format!("{}: {} bytes, {} good records", file.file, file.bytes, file.good_records));
        lines.extend(file.damage.iter().map(|d| format!("  damaged at byte {}: {}", d.offset, d.what)));
    }
    let RecordCounts { keyspaces, shards, nodes, plans } = findings.records;
    lines.push(format!("holds {keyspaces} keyspaces with {shards} shards, {nodes} nodes, {plans} plans"));
    lines.extend(findings.problems.iter().map(|problem| format!("  {problem}")));
    if !findings.uncertain.is_empty() {
        lines.push(format!(
            "{} keys may be older than what was lost: {}",
            findings.uncertain.len(),
            findings.uncertain.join(", ")
        ));
    }
    lines.push(if findings.sound { "sound".to_owned() } else { "NOT sound".to_owned() });
    lines
}
