//! From files to a version that is served: bytes of the files per core-second of the process that loads them.

use crate::data::{folder_bytes, version_name};
use crate::node::{self, Told};
use crate::servers::{self, sequins_command};
use crate::{Done, Run};
use bench_gauge::{Running, core_seconds_ever_of, free, now, rest, say};
use partage_dataset::build::{Options, Progress, build_all};
use partage_dataset::source::Source;
use partage_service::dataset::{DatasetName, VersionName};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

/// SequenceFiles into ours and into Sequins, and store files that were built before into ours, copied and linked.
pub fn bench(told: &Run) -> Done {
    let bytes = told.write_version(1)?;
    let source = told.source()?;
    let built = told.folder("built")?;
    prebuild(&source, &built)?;
    let built_bytes = folder_bytes(&built.join("bench").join(version_name(1)))?;
    let mut figures: Vec<(&str, Vec<f64>)> =
        ["SequenceFiles", "store files", "linked files", "Sequins", "floor"]
            .map(|what| (what, Vec::new()))
            .into();
    for round in 0..told.number("--rounds", 3) {
        figures[4].1.push(floor(&built.join("bench").join(version_name(1)), &told.folder("floor")?)?);
        for (what, figures) in &mut figures {
            let folder = told.folder(&format!("{what}-{round}"))?;
            let at = free()?;
            let (bytes, mut command) = match (*what, &told.sequins) {
                ("SequenceFiles", _) => (bytes, node::command(&source, &folder, at, &Told::default())?),
                ("store files", _) => (built_bytes, node::command(&built, &folder, at, &Told::default())?),
                ("linked files", _) => {
                    let told = Told { is_linking: true, ..Told::default() };
                    (built_bytes, node::command(&built, &folder, at, &told)?)
                }
                ("Sequins", Some(program)) => (bytes, sequins_command(program, &folder, (&source, at), "")?),
                _ => continue,
            };
            let began = now();
            let mut running = Running::spawn(&mut command, at)?;
            running.listens()?;
            servers::serves(&mut running, &told.data, 1)?;
            let seconds = (now() - began).as_secs_f64();
            // What it still does for the version.
            rest(1_000);
            let used = running.core_seconds_ever();
            drop(running);
            std::fs::remove_dir_all(&folder)?;
            let figure = bytes as f64 / used / 1e6;
            say(&format!(
                "load {what:13} {bytes} bytes: {used:.2} core-seconds, {figure:.0} MB per core-second, served after {seconds:.1} s"
            ));
            figures.push(figure);
        }
    }
    let median = |figures: &mut Vec<f64>| {
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let medians: Vec<f64> = figures.iter_mut().map(|(_, figures)| median(figures)).collect();
    for ((what, _), figure) in figures.iter().zip(&medians) {
        say(&format!(
            "median  load {what:13} {figure:.0} MB per core-second, {:.1} times Sequins",
            figure / medians[3]
        ));
    }
    Ok(())
}

/// The least that taking files over costs: they are read, written, and made durable, without a look at what they are.
fn floor(from: &Path, to: &Path) -> std::io::Result<f64> {
    let (mut buffer, mut bytes) = (vec![0; 256 << 10], 0);
    let before = core_seconds_ever_of(std::process::id());
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (mut input, mut output) = (File::open(entry.path())?, File::create(to.join(entry.file_name()))?);
        loop {
            let count = input.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            output.write_all(&buffer[..count])?;
            bytes += count;
        }
        output.sync_all()?;
    }
    let used = core_seconds_ever_of(std::process::id()) - before;
    std::fs::remove_dir_all(to)?;
    let figure = bytes as f64 / used / 1e6;
    say(&format!("load floor         {bytes} bytes: {used:.2} core-seconds, {figure:.0} MB per core-second"));
    Ok(figure)
}

/// As the batch job does by `partage dataset build`.
fn prebuild(source: &Path, out: &Path) -> Done {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let _inside = runtime.enter();
    let source = Source::open(&source.display().to_string(), &BTreeMap::new())?;
    let names = (DatasetName::new("bench")?, VersionName::new(&version_name(1))?);
    let progress = Arc::new(Progress::default());
    runtime.block_on(build_all(&source, (&names.0, &names.1), out, &Options::default(), &progress))?;
    Ok(())
}
