//! A dataset: the version that clients get, and those that peers may ask for by name.

use super::stripes::InFlightCounter;
use super::version::Version;
use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use partage_core::base::time::Millis;
use partage_service::dataset::name::{DatasetName, VersionName};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// How a dataset is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `content-type` of its values. What is no header value is refused by [`Dataset::new`].
    pub content_type: String,
    /// How many nodes should have each partition: for status pages, which tell too few and too many.
    pub replication: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { content_type: "application/octet-stream".to_owned(), replication: 2 }
    }
}

impl Options {
    fn checked(self, dataset: &DatasetName) -> Result<Options, NotTaken> {
        let visible = |byte: u8| (b' '..=b'~').contains(&byte);
        if self.content_type.is_empty() || !self.content_type.bytes().all(visible) {
            let (dataset, content_type) = (dataset.to_string(), self.content_type);
            return Err(NotTaken::ContentType { dataset, content_type });
        }
        Ok(self)
    }
}

/// A dataset or a version that cannot be taken up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The content type would break the header of an answer.
    #[error("dataset {dataset}: {content_type:?} is no content type: use visible ASCII, such as text/plain")]
    ContentType {
        /// The dataset whose content type was refused.
        dataset: String,
        /// The content type, as the settings of the dataset say it.
        content_type: String,
    },
    /// A version without partitions has no place for a key.
    #[error("version {version} has no partitions: a version has at least one file")]
    NoPartitions {
        /// The version that has no partitions.
        version: String,
    },
    /// A prepared version is not replaced by another one of its name.
    #[error("version {version} of dataset {dataset} is there already: retire it first")]
    Twice {
        /// The dataset that has the version already.
        dataset: String,
        /// The version that was prepared a second time.
        version: String,
    },
}

/// The version is not prepared here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("dataset {dataset} has no version {version} here: prepare it first")]
pub struct UnknownVersion {
    /// The dataset that lacks the version.
    pub dataset: String,
    /// The version that clients were to get.
    pub version: String,
}

/// A version, as it is served now.
#[derive(Debug)]
struct Shown {
    version: Arc<Version>,
    options: Arc<Options>,
    /// The order of an operator by which clients get it.
    order: u64,
    /// The lines that all plain answers of it begin with.
    plain_head: OnceLock<Box<[u8]>>,
}

impl Shown {
    fn new(version: Arc<Version>, options: Arc<Options>, order: u64) -> Arc<Shown> {
        Arc::new(Shown { version, options, order, plain_head: OnceLock::new() })
    }
}

#[derive(Debug, Clone, Default)]
struct Versions {
    options: Arc<Options>,
    serving: Option<Arc<Shown>>,
    prepared: BTreeMap<VersionName, Arc<Shown>>,
}

/// A dataset of the catalogue.
#[derive(Debug)]
pub struct Dataset {
    name: DatasetName,
    versions: ArcSwap<Versions>,
    /// The version that a person has ordered for clients.
    pinned: ArcSwapOption<VersionName>,
}

impl Dataset {
    /// A dataset that clients know and that has no version yet.
    pub fn new(name: DatasetName, options: Options) -> Result<Dataset, NotTaken> {
        let options = Arc::new(options.checked(&name)?);
        let versions = Versions { options, ..Versions::default() };
        Ok(Dataset { name, versions: ArcSwap::from_pointee(versions), pinned: ArcSwapOption::empty() })
    }

    /// The name in requests, and of its folder in the source.
    pub fn name(&self) -> &DatasetName {
        &self.name
    }

    /// The version that a person has ordered for clients, as `partage dataset rollback` does; none = the latest.
    pub fn pinned(&self) -> Option<Arc<VersionName>> {
        self.pinned.load_full()
    }

    /// Replaces the version that [`Dataset::pinned`] returns.
    pub fn set_pinned(&self, version: Option<VersionName>) {
        self.pinned.store(version.map(Arc::new));
    }

    /// How it is served.
    pub fn options(&self) -> Arc<Options> {
        self.versions.load().options.clone()
    }

    /// Sets how requests are answered from the next one on. A request that has begun ends as it began.
    pub fn set_options(&self, options: Options) -> Result<(), NotTaken> {
        let options = Arc::new(options.checked(&self.name)?);
        self.versions.rcu(|versions| {
            let again = |shown: &Arc<Shown>| Shown::new(shown.version.clone(), options.clone(), shown.order);
            let prepared = versions.prepared.iter().map(|(name, shown)| (name.clone(), again(shown)));
            Versions {
                options: options.clone(),
                serving: versions.serving.as_ref().map(again),
                prepared: prepared.collect(),
            }
        });
        Ok(())
    }

    /// Gives this version to peers that ask for it by name, as far as it is here. Clients do not get it.
    pub fn prepare(&self, version: Version) -> Result<Arc<Version>, NotTaken> {
        let version = Arc::new(version);
        let before = self.versions.rcu(|versions| {
            let mut versions = Versions::clone(versions);
            let shown = || Shown::new(version.clone(), versions.options.clone(), 0);
            versions.prepared.entry(version.name().clone()).or_insert_with(shown);
            versions
        });
        if before.prepared.contains_key(version.name()) {
            let (dataset, version) = (self.name.to_string(), version.name().to_string());
            return Err(NotTaken::Twice { dataset, version });
        }
        Ok(version)
    }

    /// Gives clients this version from now on, and no other.
    pub fn upgrade(&self, version: &str) -> Result<(), UnknownVersion> {
        self.upgrade_by(0, version)
    }

    /// The same by that order of an operator.
    pub fn upgrade_by(&self, order: u64, version: &str) -> Result<(), UnknownVersion> {
        let before = self.versions.rcu(|versions| {
            let mut versions = Versions::clone(versions);
            if let Some(next) = versions.prepared.get(version) {
                versions.serving = Some(Shown::new(next.version.clone(), versions.options.clone(), order));
            }
            versions
        });
        match before.prepared.contains_key(version) {
            true => Ok(()),
            false => Err(UnknownVersion { dataset: self.name.to_string(), version: version.to_owned() }),
        }
    }

    /// Takes this version from all further requests. Those that have it keep it: [`Version::in_flight`] tells how many.
    /// What they read stays readable until they end, also when its file is deleted.
    pub fn retire(&self, version: &str) -> Option<Arc<Version>> {
        let before = self.versions.rcu(|versions| {
            let mut versions = Versions::clone(versions);
            versions.prepared.remove(version);
            versions.serving.take_if(|serving| serving.version.name().as_str() == version);
            versions
        });
        before.prepared.get(version).map(|shown| shown.version.clone())
    }

    /// [`Dataset::retire`], unless a request has hold of the version or came for it at `since` or later: then when the
    /// last one came. `None` if there is no such version.
    pub fn retire_unused(&self, version: &str, since: Millis) -> Option<Result<Arc<Version>, Millis>> {
        let found = self.version(version)?;
        if found.in_flight() > 0 || found.last_request() >= since {
            return Some(Err(found.last_request()));
        }
        self.retire(version).map(Ok)
    }

    /// The version that clients get now, for who keeps the dataset.
    pub fn serving(&self) -> Option<Arc<Version>> {
        self.versions.load().serving.as_ref().map(|shown| shown.version.clone())
    }

    /// A prepared version, for who keeps the dataset.
    pub fn version(&self, name: &str) -> Option<Arc<Version>> {
        self.versions.load().prepared.get(name).map(|shown| shown.version.clone())
    }

    /// All prepared versions, in the order of their names.
    pub fn versions(&self) -> Vec<Arc<Version>> {
        self.versions.load().prepared.values().map(|shown| shown.version.clone()).collect()
    }

    /// The version for a request of a client: it counts as in flight until the reading is dropped.
    pub fn read(&self) -> Option<Reading> {
        Reading::new(self.versions.load(), None)
    }

    /// The version that a peer asks for.
    pub fn read_named(&self, version: &str) -> Option<Reading> {
        Reading::new(self.versions.load(), Some(version))
    }
}

/// One request's hold on one version (D5): whatever the dataset does meanwhile, it is this one to the end.
#[derive(Debug)]
pub struct Reading {
    versions: Guard<Arc<Versions>>,
    /// `None` is the one that clients get.
    named: Option<VersionName>,
    /// The order by which it was asked for by name.
    order: Option<u64>,
    column: usize,
}

impl Reading {
    fn new(versions: Guard<Arc<Versions>>, named: Option<&str>) -> Option<Reading> {
        let named = match named {
            None => None,
            Some(name) => Some(versions.prepared.get_key_value(name)?.0.clone()),
        };
        let in_flight_counter: &InFlightCounter =
            find(&versions, named.as_ref())?.version.in_flight_counter();
        let column = in_flight_counter.enter();
        Some(Reading { versions, named, order: None, column })
    }

    fn shown(&self) -> &Shown {
        find(&self.versions, self.named.as_ref()).expect("it was found in these when the reading began")
    }

    /// How it is served.
    pub fn options(&self) -> &Options {
        &self.shown().options
    }

    /// The order of an operator by which clients get it; 0 for one that a peer has asked for.
    pub fn order(&self) -> u64 {
        self.order.unwrap_or(self.shown().order)
    }

    /// The same reading, for a client who knows that this version is given by that order.
    pub(crate) fn by_order(mut self, order: u64) -> Reading {
        self.order = Some(order);
        self
    }

    /// Whether its answers begin with lines of their own.
    pub(crate) fn is_by_order(&self) -> bool {
        self.order.is_some()
    }

    /// The lines that all its plain answers begin with, which `write` makes when they are first needed.
    pub(crate) fn plain_head(&self, write: impl FnOnce() -> Box<[u8]>) -> &[u8] {
        self.shown().plain_head.get_or_init(write)
    }
}

fn find<'a>(versions: &'a Versions, named: Option<&VersionName>) -> Option<&'a Arc<Shown>> {
    match named {
        None => versions.serving.as_ref(),
        Some(name) => versions.prepared.get(name),
    }
}

impl Deref for Reading {
    type Target = Version;

    fn deref(&self) -> &Version {
        &self.shown().version
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.in_flight_counter().leave(self.column);
    }
}
