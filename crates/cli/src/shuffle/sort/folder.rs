//! The folder of the parts: it is written under another name beside its place, and gets its own when all parts are whole.

use crate::output::Failure;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A folder that is not whole yet. It goes if it is dropped before.
#[derive(Debug)]
pub struct PartFolder {
    out: PathBuf,
    partial: PathBuf,
    extension: String,
    is_whole: bool,
}

/// Whether parts may be written there.
///
/// # Errors
/// Something is there already.
pub fn check(out: &Path) -> Result<(), Failure> {
    let name = out.display();
    if out.file_name().is_none() {
        return Err(Failure::usage(format!("{name} is no name of a folder"))
            .help("name the folder of the parts with -o, such as -o sorted"));
    }
    match fs::read_dir(out) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Err(Failure::refused(format!("folder {name} is there already, and is not empty"))
                .help("name another folder with -o, or remove that one")),
            None => Ok(()),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            Err(Failure::refused(format!("{name} is there already, and is no folder"))
                .help("name another folder with -o"))
        }
        Err(error) => Err(Failure::failed(format!("cannot read folder {name}: {error}"))),
    }
}

/// The folder in which another one is.
fn parent(out: &Path) -> &Path {
    match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

impl PartFolder {
    /// Makes it, under another name.
    ///
    /// # Errors
    /// Something is there already, or no folder can be made there.
    pub fn create(out: &Path, extension: Option<&str>) -> Result<PartFolder, Failure> {
        check(out)?;
        let number = u32::from_be_bytes(partage_random::bytes());
        let mut name = std::ffi::OsString::from(".");
        name.push(out.file_name().unwrap_or_default());
        name.push(format!(".partial-{number:08x}"));
        let partial = parent(out).join(name);
        fs::create_dir_all(&partial).map_err(|error| {
            Failure::failed(format!("cannot make folder {}: {error}", partial.display()))
                .help("name a folder with -o where you may write")
        })?;
        let extension = extension.map(|extension| format!(".{extension}")).unwrap_or_default();
        Ok(PartFolder { out: out.to_owned(), partial, extension, is_whole: false })
    }

    /// The name of a part.
    pub fn name(&self, number: u64) -> String {
        format!("part-{number:05}{}", self.extension)
    }

    /// The file of a part, which is not there yet.
    pub fn path(&self, number: u64) -> PathBuf {
        self.partial.join(self.name(number))
    }

    /// All parts are whole and on disk: the folder gets its name.
    ///
    /// # Errors
    /// Something has come there meanwhile, or the folder cannot be renamed.
    pub fn finish(mut self) -> Result<(), Failure> {
        check(&self.out)?;
        let cannot = |error: std::io::Error| {
            Failure::failed(format!("cannot rename the parts to {}: {error}", self.out.display()))
        };
        sync(&self.partial).map_err(cannot)?;
        fs::rename(&self.partial, &self.out).map_err(cannot)?;
        sync(parent(&self.out)).map_err(cannot)?;
        self.is_whole = true;
        Ok(())
    }
}

fn sync(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

impl Drop for PartFolder {
    fn drop(&mut self) {
        if !self.is_whole {
            // What is left has a name that says what it is.
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_gets_its_name_when_it_is_whole_and_goes_if_it_never_is() {
        let within = tempfile::tempdir().unwrap();
        let out = within.path().join("out");
        let entries = || fs::read_dir(within.path()).unwrap().count();
        let begun = PartFolder::create(&out, Some("csv")).unwrap();
        fs::write(begun.path(0), "a").unwrap();
        assert!(!out.exists() && entries() == 1);
        drop(begun);
        assert_eq!(entries(), 0);

        // An empty folder is taken.
        fs::create_dir(&out).unwrap();
        let begun = PartFolder::create(&out, Some("csv")).unwrap();
        fs::write(begun.path(123_456), "a").unwrap();
        begun.finish().unwrap();
        assert!(out.join("part-123456.csv").exists() && entries() == 1);

        let there = PartFolder::create(&out, None).unwrap_err();
        assert!(there.what().contains("is there already, and is not empty"), "{there}");
        let file = PartFolder::create(&out.join("part-123456.csv"), None).unwrap_err();
        assert!(file.what().contains("is no folder"), "{file}");
        assert!(PartFolder::create(Path::new("/"), None).is_err());
    }
}
