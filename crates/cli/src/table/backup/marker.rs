//! Which commands write to a location or prune it at this moment: markers, so that a prune removes no chunk that a backup
//! under way counts on.
//!
//! ```text
//!  LOCATION/markers/writer-<id>    Unix time in milliseconds, as text: when its command renewed it last
//!                  /prune-<id>
//! ```
//!
//! | who | does, in this order |
//! |---|---|
//! | writer | puts its marker · waits until there is no marker of a prune · lists the chunks that are there · writes those that are not · sees that its marker is there, puts the manifest, sees again that the marker is there · removes its marker |
//! | prune | puts its marker · gives up if there is another one · lists chunks · reads the manifests that stay · removes the others · lists markers, and stops if there is another one · lists manifests, and reads those that are new · removes chunks that no manifest names · removes its marker |
//!
//! **No chunk of a backup that is there is removed.** Say that a writer counts on a chunk: it has found it, or written it, and
//! its manifest names it. Look at the last list of markers that a prune makes before it removes chunks.
//!
//! 1. The writer put its marker before that, and has not removed it: the prune sees it and removes no chunk.
//! 2. It has removed its marker before that: its manifest was there earlier still, so the prune lists it afterwards, and spares
//!    its chunks.
//! 3. It puts its marker after that: the marker of the prune was there earlier, and goes after the last chunk. So the writer
//!    waits, and lists chunks when the prune has ended.
//!
//! **A crash leaves no backup without its chunks.** A manifest goes before its chunks, and a manifest comes after its chunks.
//! What a crash leaves are chunks that no manifest names, which the next prune removes, and a marker.
//!
//! **Markers of commands that have ended.** A command renews its marker each [`RENEWAL`]. One that was not renewed for [`LIFE`]
//! counts for nothing; a prune removes it first. A command that could not renew its own for half of that, as it was suspended or
//! had no network, gives up by itself, and neither puts a manifest nor removes a chunk. So clocks of machines may differ by less
//! than half of [`LIFE`]. One that is suspended for longer between its look at the marker and the manifest finds out by the
//! second look, and takes the manifest back. What is left: a prune that is suspended for that long just before the one request
//! that removes a chunk, and sends it then.
//!
//! Programs of versions without markers are not seen by a prune.

use super::location::Location;
use crate::output::{Failure, say};
use partage_clock::unix_ms;
use partage_wire::table::backup::manifest::Manifest;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A marker that was not renewed for so long is that of a command that has ended, in milliseconds.
pub const LIFE_MS: u64 = 3_600_000;

/// How often a command renews its marker.
const RENEWAL: Duration = Duration::from_secs(300);

/// How long a backup waits for a prune to end.
const PATIENCE: Duration = Duration::from_secs(600);

/// Rest before the writer looks again.
const REST: Duration = Duration::from_secs(1);

/// What a command does at a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// It writes a backup.
    Write,
    /// It removes backups, and the chunks that no backup names then.
    Prune,
}

impl Work {
    fn word(self) -> &'static str {
        match self {
            Work::Write => "writer",
            Work::Prune => "prune",
        }
    }

    fn of(name: &str) -> Option<Work> {
        [Work::Write, Work::Prune].into_iter().find(|work| name.split('-').next() == Some(work.word()))
    }
}

/// A marker at a location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The name of its file.
    pub name: String,
    /// What its command does; none: a later version knows.
    pub work: Option<Work>,
    /// Whether its command goes on, or may.
    pub is_young: bool,
}

/// The markers at a location.
///
/// # Errors
/// The store does not answer.
pub async fn seen(location: &Location) -> Result<Vec<Seen>, Failure> {
    let now = unix_ms();
    let mut found = Vec::new();
    for (name, at_ms) in location.markers().await? {
        // One that cannot be read is young: nothing says that its command has ended.
        let is_young = at_ms.is_none_or(|at_ms| now.saturating_sub(at_ms) < LIFE_MS);
        found.push(Seen { work: Work::of(&name), name, is_young });
    }
    Ok(found)
}

/// The marker of this command.
#[derive(Debug)]
pub struct Marker {
    location: Location,
    name: String,
    renewed_ms: AtomicU64,
}

impl Marker {
    /// Puts one.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn put(location: &Location, work: Work, id: &str) -> Result<Marker, Failure> {
        let name = format!("{}-{id}", work.word());
        let now = unix_ms();
        location.put_marker(&name, now).await?;
        Ok(Marker { location: location.clone(), name, renewed_ms: AtomicU64::new(now) })
    }

    /// Waits until no prune works on the location. From then on no prune removes a chunk, until this marker is removed.
    ///
    /// # Errors
    /// A prune goes on for long, or the store does not answer.
    pub async fn alone_with_writers(&self) -> Result<(), Failure> {
        let (until, mut has_said) = (Instant::now() + PATIENCE, false);
        loop {
            let others = self.others().await?;
            let Some(prune) = others.into_iter().find(|other| other.work != Some(Work::Write)) else {
                return Ok(());
            };
            if Instant::now() >= until {
                return Err(self.occupied(&prune));
            }
            if !std::mem::replace(&mut has_said, true) {
                say(&format!("waiting for another command that removes backups: {}", prune.name));
            }
            sleep(REST).await;
        }
    }

    /// The young markers of others.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn others(&self) -> Result<Vec<Seen>, Failure> {
        let mut found = seen(&self.location).await?;
        found.retain(|marker| marker.is_young && marker.name != self.name);
        Ok(found)
    }

    /// Why this command does not go on beside another one.
    pub fn occupied(&self, other: &Seen) -> Failure {
        let (location, name) = (&self.location, &other.name);
        let does = match other.work {
            Some(Work::Write) => "writes a backup to",
            Some(Work::Prune) => "removes backups from",
            None => "works on",
        };
        Failure::refused(format!("another command {does} {location} (markers/{name})")).kind("busy").help(format!(
            "run it again when that one has ended; one that was killed counts for {} minutes, unless you remove its marker",
            LIFE_MS / 60_000
        ))
    }

    /// Whether this command may still count on its marker.
    ///
    /// # Errors
    /// It could not renew it for too long: another command may take it for one that has ended.
    pub fn check(&self) -> Result<(), Failure> {
        if unix_ms().abs_diff(self.renewed_ms.load(Ordering::Relaxed)) < LIFE_MS / 2 {
            return Ok(());
        }
        let what = format!("{}: the marker {} could not be renewed for too long", self.location, self.name);
        Err(Failure::failed(what).help("run the same command again"))
    }

    /// Does some work, and renews the marker meanwhile.
    ///
    /// # Errors
    /// Those of the work, or the marker is lost.
    pub async fn during<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let renew = async {
            loop {
                sleep(RENEWAL).await;
                // A marker that another command may have removed must not come back.
                if let Err(lost) = self.check() {
                    return lost;
                }
                let now = unix_ms();
                if self.location.put_marker(&self.name, now).await.is_ok() {
                    self.renewed_ms.store(now, Ordering::Relaxed);
                }
            }
        };
        tokio::select! {
            done = work => done,
            lost = renew => Err(lost),
        }
    }

    async fn is_there(&self) -> Result<bool, Failure> {
        Ok(self.location.markers().await?.into_iter().any(|(name, _)| name == self.name))
    }

    /// Puts the manifest of a backup whose chunks were listed and written under this marker.
    ///
    /// # Errors
    /// Another command has taken this one for ended. Then there is no backup.
    pub async fn put_manifest(&self, manifest: &Manifest) -> Result<(), Failure> {
        self.check()?;
        if self.is_there().await? {
            self.location.put_manifest(manifest).await?;
            if self.is_there().await? {
                return Ok(());
            }
            self.location.remove_manifest(&manifest.table, &manifest.id).await?;
        }
        let what = format!("{}: another command has removed the marker {}", self.location, self.name);
        Err(Failure::failed(what)
            .help("chunks may be gone: run the same command again, which writes them anew"))
    }

    /// Removes it. One that is left counts until its life is over.
    pub async fn remove(&self) {
        if let Err(why) = self.location.remove_marker(&self.name).await {
            say(&format!("warning: the marker {} stays: {}", self.name, why.what()));
        }
    }
}
