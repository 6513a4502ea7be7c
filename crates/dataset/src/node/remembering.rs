//! What is written down for the next start: the seat, and what clients get of each dataset.

use crate::build::{sync_folder, write};
use crate::limits::REMEMBERED_BYTES;
use partage_wire::dataset::presence::Remembered;
use std::io::ErrorKind;
use std::path::Path;

/// The name of the file beside the datasets of the local store, of which none has a dot in its name.
const FILE: &str = "_node.txt";

/// What was written, or nothing, as at a first start.
pub fn read(folder: &Path) -> Remembered {
    let path = folder.join(FILE);
    let found = text(&path).and_then(|text| {
        let decoded = text.map(|text| Remembered::decode(&text).map_err(|error| error.to_string()));
        decoded.transpose()
    });
    found.map(Option::unwrap_or_default).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), error, "not remembered: the node starts as for the first time");
        Remembered::default()
    })
}

/// What is in the file; none where there is no file.
fn text(path: &Path) -> Result<Option<String>, String> {
    let bytes = match std::fs::metadata(path) {
        Ok(file) => file.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if bytes > REMEMBERED_BYTES {
        return Err(format!("it has {bytes} bytes, and no node reads more than {REMEMBERED_BYTES}"));
    }
    std::fs::read_to_string(path).map(Some).map_err(|error| error.to_string())
}

/// Writes it down, all of it or none, on disk when this returns.
pub fn keep(folder: &Path, remembered: &Remembered) -> Result<(), crate::build::Error> {
    let (path, unfinished) = (folder.join(FILE), folder.join("_node.txt.new"));
    write(&unfinished, remembered.encode().as_bytes())?;
    std::fs::rename(&unfinished, &path).map_err(|error| crate::build::Error::of_disk(&path, error))?;
    sync_folder(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_long_is_told_and_one_that_is_not_there_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        assert_eq!(text(&path), Ok(None));
        std::fs::File::create(&path).unwrap().set_len(REMEMBERED_BYTES).unwrap();
        assert!(text(&path).is_ok_and(|text| text.is_some()));
        std::fs::File::create(&path).unwrap().set_len(REMEMBERED_BYTES + 1).unwrap();
        let told = text(&path).unwrap_err();
        assert!(told.contains(&(REMEMBERED_BYTES + 1).to_string()), "{told}");
        assert_eq!(read(folder.path()), Remembered::default());
    }
}
