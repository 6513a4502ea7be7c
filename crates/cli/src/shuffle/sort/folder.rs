//! The folder of the parts: it is written under another name beside its place, and gets its own when all parts are whole.

use crate::output::Failure;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A folder that is not whole yet. It goes if it is dropped before, and with it the folders above it that were made for it.
#[derive(Debug)]
pub struct PartFolder {
    out: PathBuf,
    partial: PathBuf,
    /// Those that were not there, the innermost one first.
    made: Vec<PathBuf>,
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
    // No folder can be renamed to a link, be it to an empty one. The name may end with a slash, which would follow it.
    let itself = parent(out).join(out.file_name().unwrap_or_default());
    if fs::symlink_metadata(itself).is_ok_and(|found| found.is_symlink()) {
        return Err(Failure::refused(format!("{name} is a symbolic link"))
            .help("name the folder that it leads to with -o, or another folder"));
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
        let is_lacking = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let made = parent(out).ancestors().take_while(is_lacking).map(Path::to_owned).collect();
        let extension = extension.map(|extension| format!(".{extension}")).unwrap_or_default();
        // What was made of it goes if not all of it can be.
        let folder = PartFolder { out: out.to_owned(), partial, made, extension, is_whole: false };
        fs::create_dir_all(&folder.partial).map_err(|error| {
            Failure::failed(format!("cannot make folder {}: {error}", folder.partial.display()))
                .help("name a folder with -o where you may write")
        })?;
        Ok(folder)
    }

    /// The name of a part.
    pub fn name(&self, number: u64) -> String {
        format!("part-{number:05}{}", self.extension)
    }

    /// The file of a part, which is not there yet.
    pub fn path(&self, number: u64) -> PathBuf {
        self.partial.join(self.name(number))
    }

    /// All parts are whole and on disk: the folder gets its name. If it does not, the parts stay where they are.
    ///
    /// # Errors
    /// Something has come there meanwhile, or the folder cannot be renamed. The failure says where the parts are.
    pub fn finish(mut self) -> Result<(), Failure> {
        // From here on nothing is to be done again: the parts are not removed.
        self.is_whole = true;
        let here = || format!("all parts are whole in {}: move them from there", self.partial.display());
        check(&self.out).map_err(|failure| failure.help(here()))?;
        let cannot = |error: std::io::Error| {
            Failure::failed(format!("cannot rename the parts to {}: {error}", self.out.display()))
        };
        let renamed = sync(&self.partial).and_then(|()| fs::rename(&self.partial, &self.out));
        renamed.map_err(|error| cannot(error).help(here()))?;
        sync(parent(&self.out)).map_err(cannot)
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
            // One that has something else by now stays.
            self.made.iter().for_each(|folder| drop(fs::remove_dir(folder)));
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

        // So do the folders above it.
        let deep = within.path().join("a").join("b").join("out");
        drop(PartFolder::create(&deep, None).unwrap());
        assert_eq!(entries(), 1);
        PartFolder::create(&deep, None).unwrap().finish().unwrap();
        assert!(deep.exists());

        let there = PartFolder::create(&out, None).unwrap_err();
        assert!(there.what().contains("is there already, and is not empty"), "{there}");
        let file = PartFolder::create(&out.join("part-123456.csv"), None).unwrap_err();
        assert!(file.what().contains("is no folder"), "{file}");
        assert!(PartFolder::create(Path::new("/"), None).is_err());
    }

    #[test]
    fn whole_parts_that_cannot_get_their_name_stay_and_it_is_said_where() {
        let within = tempfile::tempdir().unwrap();
        let out = within.path().join("out");
        let begun = PartFolder::create(&out, None).unwrap();
        let part = begun.path(0);
        fs::write(&part, "a").unwrap();
        // A file has come there meanwhile.
        fs::write(&out, "b").unwrap();
        let failure = begun.finish().unwrap_err();
        assert!(part.exists());
        let folder = part.parent().unwrap().display().to_string();
        assert!(format!("{failure:?}").contains(&folder), "{failure:?}");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_refused_before_anything_is_sorted() {
        let within = tempfile::tempdir().unwrap();
        let (out, folder) = (within.path().join("out"), within.path().join("folder"));
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&folder, &out).unwrap();
        for name in [out.clone(), within.path().join("out/")] {
            let refused = check(&name).unwrap_err();
            assert!(refused.what().contains("is a symbolic link"), "{refused}");
        }
    }
}
