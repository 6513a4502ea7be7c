//! `partage check PATH`: is this state sound, and if not, what is wrong with it and what can be saved?
//!
//! PATH is the data directory of a coordinator that is stopped, or a backup, or a dump (`GET /v1/dump`), or `-` for one
//! of these two on stdin. All end as the same records, which the same check looks at; only what can be damaged on the
//! way there differs. With `--coordination` in its place, it is the root of a cluster in a backend.
//!
//! | what is wrong             | where it is                        | what can be saved                       |
//! |---------------------------|------------------------------------|-----------------------------------------|
//! | bytes of a file           | file, offset, number in the journal | all other records; some may be older    |
//! | a record                  | its key, the file and offset of it | all other records; a map up to there    |
//! | a piece of a dump         | keyspace, shard, replica           | all other pieces                        |
//! | what records say together | keyspace, shard, replica           | all but the maps that are none          |

use crate::coordination::CoordinationArgs;
use crate::output::{Failure, Output, say};
use clap::Args;
use partage_clock::unix_ms;
use partage_coordination::embedded::salvage::{self, Report};
use partage_coordination::{Election, Entry, Error, Key, Remark, Target, Term, Version, Weight};
use partage_coordinator::coordination_state::inspect::{Inspection, inspect};
use partage_coordinator::coordination_state::show::show;
use partage_core::base::count::counted;
use partage_core::base::counter_jump::CounterJump;
use partage_core::cluster::Records;
use partage_core::cluster::check;
use partage_wire::backup;
use partage_wire::json::{Coordinator, Reading};
use partage_wire::stored::{self, Shown, StoreEncoder, StoreOp, is_record};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The arguments of `partage check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Data directory of a stopped coordinator, or a backup file, or a dump file, or - for a backup or dump on stdin
    path: Option<PathBuf>,
    /// The same, by the flag that `coordinator` has for it
    #[arg(long, hide = true, value_name = "DIR", conflicts_with = "path")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    coordination: CoordinationArgs,
    /// Write the data that can be saved to this new directory, from which a coordinator can start
    #[arg(long, value_name = "DIR")]
    save_to: Option<PathBuf>,
    /// Print every key of the coordination state, decoded
    #[arg(long)]
    show: bool,
}

/// What the check found, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Findings {
    sound: bool,
    files: Vec<FileFindings>,
    /// What [`CheckArgs::save_to`] can save.
    records: RecordCounts,
    /// Keys that may be older than what was lost.
    uncertain: Vec<String>,
    problems: Vec<String>,
    /// What does no harm yet, with how much it matters: `risky` before `untidy`.
    remarks: Vec<RemarkFinding>,
    /// The findings about a root in a backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<RootFindings>,
    /// Every key, with `--show`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shown: Vec<Shown>,
}

#[derive(Debug, Serialize)]
struct RemarkFinding {
    weight: String,
    what: String,
}

#[derive(Debug, Serialize)]
struct RootFindings {
    /// The cluster that it belongs to; none when it belongs to none.
    cluster: Option<String>,
    keys: usize,
    coordinators: Vec<Coordinator>,
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

#[derive(Debug, Serialize)]
struct RecordCounts {
    keyspaces: Vec<KeyspaceCounts>,
    nodes: usize,
    plans: usize,
}

#[derive(Debug, Serialize)]
struct KeyspaceCounts {
    name: String,
    /// The map it is at, counted from 1.
    map: u64,
    shards: usize,
}

/// A state that was looked at.
struct Look {
    findings: Findings,
    records: Records,
    /// What was found in the directory; none for a dump.
    report: Option<Report>,
}

impl CheckArgs {
    /// Runs it: done when everything is sound, or what can be saved of it is saved; failed when not.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let (place, mut look) = match self.path.as_ref().or(self.data_dir.as_ref()) {
            Some(path) if path.is_dir() => (path.display().to_string(), directory(path)?),
            Some(path) => (path.display().to_string(), dump(path)?),
            None => {
                let nothing =
                    || Failure::usage("name what to check: a directory, a file, or --coordination ADDRESS");
                let target = self.coordination.target()?.ok_or_else(nothing)?;
                (target.to_string(), root(&target).await?)
            }
        };
        if !self.show {
            look.findings.shown.clear();
        }
        let findings = &look.findings;
        if output.is_json() {
            output.json(findings)?;
        } else {
            lines(findings).iter().for_each(|line| output.text(line));
        }
        match &self.save_to {
            Some(to) => save(&look, to),
            None if findings.sound => Ok(()),
            None => Err(Failure::failed(format!("{place} is not sound"))
                .help("save what can be saved with --save-to NEW_DIR, or restore a backup")),
        }
    }
}

/// Looks at the data directory of a coordinator.
fn directory(path: &Path) -> Result<Look, Failure> {
    let report = salvage::inspect(path).map_err(Failure::failed)?;
    if report.files.is_empty() {
        return Err(Failure::usage(format!("{} holds no state of a coordinator", path.display())));
    }
    let entries = report.entries.iter().map(|(key, entry)| (key.as_str(), &entry.value));
    let (recovered, damage) = stored::inspect(entries.filter(|(key, _)| is_record(key)));
    let mut problems: Vec<String> = damage
        .into_iter()
        .map(|damage| {
            let found = Key::new(&damage.key).ok().and_then(|key| report.found(&key));
            let place = found.map(|(file, offset)| format!("{} at byte {offset}: ", file.display()));
            format!("{}{damage}", place.unwrap_or_default())
        })
        .collect();
    problems.extend(check::records(&recovered.records).iter().map(ToString::to_string));
    let findings = Findings {
        sound: report.is_sound() && problems.is_empty(),
        files: report.files.iter().map(file_findings).collect(),
        records: counts(&recovered.records),
        uncertain: report.uncertain.iter().map(ToString::to_string).collect(),
        problems,
        remarks: vec![],
        root: None,
        shown: show(&path.display().to_string(), &report.entries),
    };
    Ok(Look { findings, records: recovered.records, report: Some(report) })
}

/// Looks at a dump, or at the one in a backup.
fn dump(path: &Path) -> Result<Look, Failure> {
    let unreadable = |error| {
        let what = format!("cannot read {}: {error}", path.display());
        Failure::usage(what).help("name the data directory of a coordinator, a file with a dump, or -")
    };
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes).map_err(unreadable)?
    } else {
        std::fs::read(path).map_err(unreadable)?
    };
    let Reading { records, problems, .. } = if backup::is_backup(&bytes) {
        match backup::salvage(&bytes) {
            Ok((document, damage)) => {
                let mut reading = Reading::of(&document);
                reading.problems.splice(0..0, damage.iter().map(ToString::to_string));
                reading
            }
            Err(error) => Reading { problems: vec![error.to_string()], ..Reading::default() },
        }
    } else if bytes.trim_ascii_start().starts_with(b"{") {
        Reading::of(&bytes)
    } else {
        let named =
            if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
        let what = format!("{named} is no dump and no backup of a cluster");
        return Err(Failure::usage(what).help(
            "`partage backup --to FILE` makes a backup, and GET /v1/dump of a coordinator gives a dump",
        ));
    };
    let findings = Findings {
        sound: problems.is_empty(),
        files: vec![],
        records: counts(&records),
        uncertain: vec![],
        problems,
        remarks: vec![],
        root: None,
        shown: vec![],
    };
    Ok(Look { findings, records, report: None })
}

/// Looks at the root of a cluster in a backend.
async fn root(target: &Target) -> Result<Look, Failure> {
    let found = inspect(target).await.map_err(|error| match error {
        Error::Unavailable { .. } => Failure::not_reachable(error),
        Error::Denied { .. } => Failure::refused(error),
        _ => Failure::failed(error),
    })?;
    let Inspection { cluster, keys, coordinators, records, remarks, shown } = found;
    let (problems, remarks): (Vec<_>, Vec<_>) =
        remarks.into_iter().partition(|remark| remark.weight == Weight::Wrong);
    let remark = |Remark { weight, what }| RemarkFinding { weight: weight.to_string(), what };
    let cluster = cluster.map(|cluster| cluster.to_string());
    let findings = Findings {
        sound: problems.is_empty(),
        files: vec![],
        records: counts(&records),
        uncertain: vec![],
        problems: problems.into_iter().map(|remark| remark.what).collect(),
        remarks: remarks.into_iter().map(remark).collect(),
        root: Some(RootFindings { cluster, keys, coordinators }),
        shown,
    };
    Ok(Look { findings, records, report: None })
}

/// Makes a data directory of what can be saved. One that was sound is copied. All else is older than what was
/// last acted upon, and goes on far beyond it.
fn save(look: &Look, to: &Path) -> Result<(), Failure> {
    crate::door::make_state_private();
    let (cluster, entries, version) = match &look.report {
        Some(report) if look.findings.sound => (report.cluster, report.entries.clone(), report.version),
        Some(report) => {
            let others = report.entries.iter().filter(|(key, _)| !is_record(key.as_str()));
            let others = others.map(|(key, entry)| (key.clone(), entry.clone())).collect();
            (report.cluster, entries_of(&look.records, others, report.version)?, report.version)
        }
        None => {
            let version = Version::new(1);
            (None, entries_of(&look.records, BTreeMap::new(), version)?, version)
        }
    };
    salvage::save(to, cluster, &entries, version).map_err(Failure::failed)?;
    say(&format!("what can be saved is in {}: start a coordinator with --data-dir there", to.display()));
    Ok(())
}

/// The entries of a store that holds what can be started from, beside `others`.
fn entries_of(
    records: &Records,
    others: BTreeMap<Key, Entry>,
    version: Version,
) -> Result<BTreeMap<Key, Entry>, Failure> {
    let saved = records.clone().after_loss(unix_ms());
    for (record, _) in &records.keyspaces {
        let name = &record.keyspace.name;
        if !saved.keyspaces.iter().any(|(kept, _)| kept.keyspace.name == *name) {
            say(&format!("keyspace {name} is not saved: its settings or its map cannot be; create it again"));
        }
    }
    let map = |name: &_| saved.keyspaces.iter().find(|(r, _)| r.keyspace.name == *name).map(|(_, map)| map);
    let batch = StoreEncoder::default().encode(&saved.writes(), map).map_err(Failure::failed)?;
    let mut entries = others;
    let election = Key::new(stored::ELECTION).map_err(Failure::failed)?;
    let (term, _) = Election::last_term(&election, Term::default()).map_err(Failure::failed)?;
    let last = entries.get(&term).and_then(|entry| Some(u64::from_be_bytes((*entry.value).try_into().ok()?)));
    let last = Term::new(CounterJump::at(unix_ms()).beyond(last.unwrap_or_default()));
    let (term, value) = Election::last_term(&election, last).map_err(Failure::failed)?;
    entries.insert(term, Entry { value, version, session: None });
    for operation in batch.prepare.into_iter().chain(batch.commit) {
        if let StoreOp::Put(key, value) = operation {
            let key = Key::new(&key).map_err(Failure::failed)?;
            entries.insert(key, Entry { value, version, session: None });
        }
    }
    Ok(entries)
}

fn counts(records: &Records) -> RecordCounts {
    let keyspaces = records.keyspaces.iter().map(|(_, map)| KeyspaceCounts {
        name: map.keyspace().to_string(),
        map: map.generation().sequence,
        shards: map.len(),
    });
    RecordCounts { keyspaces: keyspaces.collect(), nodes: records.nodes.len(), plans: records.plans.len() }
}

fn file_findings(file: &salvage::FileReport) -> FileFindings {
    let damage = file.damage.iter().map(|d| DamageFinding { offset: d.offset, what: d.what.to_string() });
    FileFindings {
        file: file.path.display().to_string(),
        bytes: file.bytes,
        good_records: file.good_records,
        damage: damage.collect(),
    }
}

fn lines(findings: &Findings) -> Vec<String> {
    let mut lines = Vec::new();
    for file in &findings.files {
        lines.push(format!(
            "{}: {} bytes, {}",
            file.file,
            file.bytes,
            counted(file.good_records, "good record")
        ));
        lines.extend(file.damage.iter().map(|d| format!("  damaged at byte {}: {}", d.offset, d.what)));
    }
    if let Some(root) = &findings.root {
        lines.extend(root_lines(root));
    }
    lines.extend(findings.shown.iter().map(shown_line));
    lines.extend(findings.problems.iter().map(|problem| format!("wrong: {problem}")));
    lines.extend(findings.remarks.iter().map(|RemarkFinding { weight, what }| format!("{weight}: {what}")));
    let RecordCounts { keyspaces, nodes, plans } = &findings.records;
    let verb = if findings.sound { "holds" } else { "can be saved:" };
    lines.push(format!(
        "{verb} {}, {}, {}",
        counted(keyspaces.len(), "keyspace"),
        counted(*nodes, "node"),
        counted(*plans, "plan")
    ));
    let keyspace = |k: &KeyspaceCounts| {
        format!("  keyspace {} at map {} with {}", k.name, k.map, counted(k.shards, "shard"))
    };
    lines.extend(keyspaces.iter().map(keyspace));
    if !findings.uncertain.is_empty() {
        lines.push(format!(
            "{} may be older than what was lost: {}",
            counted(findings.uncertain.len(), "key"),
            findings.uncertain.join(", ")
        ));
    }
    lines.push(if findings.sound { "sound".to_owned() } else { "NOT sound".to_owned() });
    lines
}

fn shown_line(shown: &Shown) -> String {
    let Shown { key, version, ephemeral, bytes, says, readable } = shown;
    let session = if *ephemeral { ", goes with its session" } else { "" };
    let wrong = if *readable { "" } else { "CANNOT BE READ: " };
    format!("{key}\n  version {version}, {}{session}\n  {wrong}{says}", counted(*bytes, "byte"))
}

fn root_lines(root: &RootFindings) -> Vec<String> {
    let whose = root.cluster.as_ref().map_or("no cluster".to_owned(), |cluster| format!("cluster {cluster}"));
    let coordinator = |one: &Coordinator| {
        let says = match (one.leads, one.term) {
            (true, Some(term)) => format!("leads, term {term}"),
            (true, None) => "leads".to_owned(),
            (false, Some(term)) => format!("was elected at term {term}, and does not answer yet"),
            (false, None) => "stands by".to_owned(),
        };
        format!("  coordinator {} at {} {says}", one.id, one.address)
    };
    let first = format!("a root of {whose} with {}", counted(root.keys, "key"));
    [first].into_iter().chain(root.coordinators.iter().map(coordinator)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D19: one that was elected and cannot begin is no leader.
    #[test]
    fn only_who_answers_is_said_to_lead() {
        let one = |id: &str, leads, term| Coordinator {
            id: id.to_owned(),
            address: "10.0.0.1:7400".to_owned(),
            leads,
            term,
            since_ms: 1,
            version: "0.1.0".to_owned(),
        };
        let coordinators = vec![one("c1", true, Some(3)), one("c2", false, Some(4)), one("c3", false, None)];
        let root = RootFindings { cluster: None, keys: 2, coordinators };
        assert_eq!(
            root_lines(&root)[1..],
            [
                "  coordinator c1 at 10.0.0.1:7400 leads, term 3",
                "  coordinator c2 at 10.0.0.1:7400 was elected at term 4, and does not answer yet",
                "  coordinator c3 at 10.0.0.1:7400 stands by",
            ]
        );
    }
}
