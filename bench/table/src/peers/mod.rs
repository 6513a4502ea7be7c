//! The servers that are measured beside ours. One that is not installed is left out, loudly.

pub mod etcd;
pub mod postgres;
pub mod redis;

use bench_gauge::complain;
use std::path::PathBuf;

/// Where Debian puts servers, beside the folders of `PATH`.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// The path of a program; if there is none, says which package has it.
#[expect(clippy::disallowed_methods, reason = "where programs are is a matter of the machine")]
pub fn program(name: &str, package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from)).chain(postgres::folder());
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    if found.is_none() {
        complain(&format!(
            "MISSING: {name}. Its figures and ratios are left out. On Debian: apt-get install {package}"
        ));
    }
    found
}
