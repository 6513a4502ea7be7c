//! How many files the process may have open.

use crate::limits;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit of open files as far as the system lets a process, and returns it.
pub fn raise() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            limit = getrlimit(Resource::Nofile);
        }
    }
    limit.current.unwrap_or(u64::MAX)
}

/// How many of `files` connections may take; the process itself keeps the others.
pub fn for_connections(files: u64) -> usize {
    let kept = limits::FILES_KEPT.min(files / 2);
    usize::try_from(files - kept).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_some_files_are_kept() {
        let files = raise();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
        assert_eq!(files, now.current.unwrap_or(u64::MAX));
        assert_eq!(for_connections(100), 50);
        assert_eq!(for_connections(10_000), 9_488);
    }
}
