//! The folder with a process's state is for the user of the process alone.
//!
//! The command line sets a umask, so other users cannot enter a folder that it makes. A folder that was there before
//! may have another mode, so each role calls [`make_private`] when it opens its folder. What lies below keeps its
//! mode: other users do not get that far.

use rustix::fs::{Mode, OFlags, fchmod, fstat, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::path::Path;

/// Others may read, write or enter.
const OTHERS: u32 = 0o077;

/// Many users write here, as in `/tmp`.
const SHARED: u32 = 0o1000;

/// Why a folder stays as it is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum PrivacyError {
    #[error("it belongs to user {owner}, and this process is of user {us}")]
    OfAnother { owner: u32, us: u32 },
    #[error("it is for all users of this machine, as /tmp is")]
    Shared,
    #[error(transparent)]
    System(#[from] Errno),
}

/// Gives a folder of this process's user the mode 0700, and leaves its content alone. It makes no folder, passes over
/// what is none, and logs one that stays open, as the process can work all the same.
pub fn make_private(folder: &Path) {
    if let Err(why) = closed(folder) {
        tracing::warn!(
            folder = %folder.display(),
            "stays open to other users: {why}; `chmod 700` it, or give the process a folder of its own"
        );
    }
}

/// Closes the folder to other users, by a handle, so that it changes the folder that it checked.
fn closed(folder: &Path) -> Result<(), PrivacyError> {
    let folder = match open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        // The caller reports a file where it needs a folder.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        folder => folder?,
    };
    let there = fstat(&folder)?;
    if is_to_be_closed(there.st_mode, there.st_uid, geteuid().as_raw())? {
        fchmod(&folder, Mode::RWXU)?;
    }
    Ok(())
}

fn is_to_be_closed(mode: u32, owner: u32, us: u32) -> Result<bool, PrivacyError> {
    match mode {
        mode if mode & OTHERS == 0 => Ok(false),
        // Root could, and would lock the folder's other users out.
        _ if owner != us => Err(PrivacyError::OfAnother { owner, us }),
        mode if mode & SHARED != 0 => Err(PrivacyError::Shared),
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_ours_is_closed_and_no_other() {
        let (us, another) = (7, 8);
        for (mode, owner, expected) in [
            (0o40755, us, Ok(true)),
            (0o40710, us, Ok(true)),
            (0o42701, us, Ok(true)),
            (0o40700, us, Ok(false)),
            (0o40700, another, Ok(false)),
            (0o40755, another, Err(PrivacyError::OfAnother { owner: another, us })),
            (0o41777, us, Err(PrivacyError::Shared)),
            (0o41777, another, Err(PrivacyError::OfAnother { owner: another, us })),
        ] {
            assert_eq!(is_to_be_closed(mode, owner, us), expected, "{mode:o} of {owner}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_no_error() {
        assert_eq!(closed(Path::new("/nowhere/at/all")), Ok(()));
    }
}
