//! A small file system of its own, which can be filled: in memory, and gone when its process ends.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A file system of a few MiB.
pub struct SmallDisk {
    /// Has the mount in a namespace of its own, so that nothing is left of it when a test is killed.
    holder: Child,
    path: PathBuf,
}

impl SmallDisk {
    /// Makes one with the room of so many MiB on `folder`, which is there. None, with the reason on the standard error: this
    /// process may not mount (it takes root on Linux).
    pub fn new(folder: &Path, mib: u32) -> Option<SmallDisk> {
        let script =
            format!("mount -t tmpfs -o size={mib}m tmpfs '{}' && echo ready && exec cat", folder.display());
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let skipped = |why: String| {
            // Past the harness, which keeps what a test that succeeds prints.
            let _ = writeln!(std::io::stderr(), "SKIPPED: a full disk needs a file system to fill: {why}");
            None
        };
        let mut holder = match command.spawn() {
            Ok(holder) => holder,
            Err(error) => return skipped(format!("unshare: {error}")),
        };
        let mut line = String::new();
        let said = BufReader::new(holder.stdout.take()?).read_line(&mut line);
        if said.is_err() || line.trim() != "ready" {
            let _ = holder.wait();
            return skipped("this process may not mount one; run the test as root on Linux".to_owned());
        }
        // What another process has mounted is seen through it.
        let path = PathBuf::from(format!("/proc/{}/root{}", holder.id(), folder.display()));
        Some(SmallDisk { holder, path })
    }

    /// The folder in which it is mounted, as this process sees it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes all room but so many bytes.
    pub fn fill(&self, but: u64) {
        let filler = self.path.join("filler");
        let mut file = std::fs::File::options().create(true).append(true).open(&filler).unwrap();
        let piece = vec![0; 64 << 10];
        while file.write_all(&piece).is_ok() {}
        // Less than a piece.
        while file.write_all(&piece[..4096]).is_ok() {}
        let bytes = file.metadata().unwrap().len();
        file.set_len(bytes.saturating_sub(but)).unwrap();
    }

    /// Gives the room back.
    pub fn clear(&self) {
        std::fs::remove_file(self.path.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
