//! The folder that a batch job writes, and a node reads.

use partage_service::dataset::Partitioner;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The name of the dataset, and of its folder.
pub const DATASET: &str = "names";

/// Files of a version, and so partitions.
pub const FILES: u32 = 5;

/// Keys of a version: so many that each file is known for one partition, and is read by the nodes that want it only.
pub const KEYS: u32 = 200;

/// One folder. Versions come into it whole.
#[derive(Debug, Clone)]
pub struct Source {
    folder: PathBuf,
}

/// The key of that number; from [`KEYS`] on they begin again.
pub fn key(number: u32) -> String {
    format!("key-{:03}", number % KEYS)
}

/// All keys, in their order.
pub fn keys() -> impl Iterator<Item = String> {
    (0..KEYS).map(key)
}

/// What a version has for a key.
pub fn value(version: &str, key: &str) -> String {
    format!("{version} {key}")
}

impl Source {
    /// A new one, with a dataset and nothing in it.
    pub fn new(folder: PathBuf) -> Source {
        let source = Source { folder };
        source.dataset(DATASET);
        source
    }

    /// The folder that has the folders of datasets.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn dataset(&self, name: &str) -> PathBuf {
        let dataset = self.folder.join(name);
        let settings = "format = 'csv'\nkey = 'key'\nvalues = ['value']\nlayout = 'ordered'\n";
        fs::create_dir_all(&dataset).unwrap();
        fs::write(dataset.join("_dataset.toml"), settings).unwrap();
        dataset
    }

    /// Adds a version, which comes into the folder as a whole.
    pub fn add(&self, version: &str) {
        self.add_heavy(version, 0);
    }

    /// The same with so many bytes of ballast in each file.
    pub fn add_heavy(&self, version: &str, bytes: usize) {
        let dataset = self.dataset(DATASET);
        let writing = dataset.join("_writing");
        fs::create_dir_all(&writing).unwrap();
        for file in 0..FILES {
            let mine: Vec<String> = keys()
                .filter(|key| Partitioner::JavaBytes.partition(key.as_bytes(), FILES) == file)
                .collect();
            let ballast = "x".repeat(bytes / mine.len());
            let mut text = "key,value,ballast\n".to_owned();
            for key in mine {
                writeln!(text, "{key},{},{ballast}", value(version, &key)).unwrap();
            }
            fs::write(writing.join(format!("part-{file:05}.csv")), text).unwrap();
        }
        fs::rename(writing, dataset.join(version)).unwrap();
    }

    /// Another dataset comes, whose name is after that of the first: a node that has found it has looked at both.
    pub fn mark(&self, name: &str) {
        let folder = self.dataset(&format!("zz-{name}")).join("1");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("part-0.csv"), "key,value\na,b\n").unwrap();
    }

    /// Removes a version with all of its files.
    pub fn remove(&self, version: &str) {
        fs::remove_dir_all(self.folder.join(DATASET).join(version)).unwrap();
    }

    /// The whole folder is gone.
    pub fn go_away(&self) {
        fs::rename(&self.folder, self.elsewhere()).unwrap();
    }

    /// It is there again.
    pub fn come_back(&self) {
        fs::rename(self.elsewhere(), &self.folder).unwrap();
    }

    fn elsewhere(&self) -> PathBuf {
        self.folder.with_extension("away")
    }
}
