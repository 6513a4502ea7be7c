//! A shell that goes on from one command to the next, as that of a person does.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// After each answer, on a line of its own, with the exit code of the last command.
const END: &str = "--end-of-answer--";

/// A shell that goes on, with all that it has started.
pub struct Shell {
    process: Child,
    typed: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Shell {
    /// In that folder, which has the program `partage` in its path; the coordinator listens there.
    pub fn start(dir: &Path, coordinator: &str) -> Shell {
        let bin = dir.join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_partage"), bin.join("partage")).unwrap();
        let mut command = Command::new("bash");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        command.current_dir(dir).env("PATH", path).env("USER", "anonymous").process_group(0);
        command.env("PARTAGE_COORDINATOR", coordinator).env("PARTAGE_COORDINATORS", coordinator);
        // The disk of a machine that tests is as full as it is.
        command.envs([("PARTAGE_DISK_NEARLY_FULL", "1"), ("PARTAGE_DISK_FULL", "1")]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (typed, said) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Shell { process, typed, said }
    }

    /// Types that; gives what is printed, and the exit code of the last command.
    pub fn types(&mut self, script: &str, to: &str) -> (String, i32) {
        write!(self.typed, "{{ {script}\n}} {to}\nended=$?; echo; echo {END} $ended\n").unwrap();
        let mut said = String::new();
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "the shell has ended: {script}: {said}");
            if let Some(code) = line.strip_prefix(END) {
                return (said, code.trim().parse().unwrap());
            }
            said.push_str(&line);
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = format!("-{}", self.process.id());
        let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.process.wait();
    }
}
