//! What is written down for the next start: the seat, and what clients get of each dataset.

use crate::build::{sync_folder, write};
use crate::limits::REMEMBERED_BYTES;
use partage_wire::dataset::presence::Remembered;
use std::path::Path;

/// Beside the datasets of the local store, of which none has a dot in its name.
const FILE: &str = "_node.txt";

/// What was written, or nothing, as at a first start.
pub fn read(folder: &Path) -> Remembered {
    let path = folder.join(FILE);
    let is_there = std::fs::metadata(&path).is_ok_and(|file| file.len() <= REMEMBERED_BYTES);
    if !is_there {
        return Remembered::default();
    }
    let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
    let found = text.and_then(|text| Remembered::decode(&text).map_err(|error| error.to_string()));
    found.unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), error, "not remembered");
        Remembered::default()
    })
}

/// Writes it down, all of it or none, on disk when this returns.
pub fn keep(folder: &Path, remembered: &Remembered) -> Result<(), crate::build::Error> {
    let (path, unfinished) = (folder.join(FILE), folder.join("_node.txt.new"));
    write(&unfinished, remembered.encode().as_bytes())?;
    std::fs::rename(&unfinished, &path).map_err(|error| crate::build::Error::of_disk(&path, error))?;
    sync_folder(folder)
}
