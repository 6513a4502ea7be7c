//! `partage completions` and `partage man`: what a shell and a manual know of this program, made from its commands.
//!
//! Names of keyspaces and nodes are not completed: a coordinator would be asked at each press of a key, and one that
//! does not answer would hold the shell up.

use crate::output::{Failure, Output, say};
use clap::{Args, Command};
use clap_complete::Shell;
use std::path::PathBuf;

/// The arguments of `partage completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell that the completions are for
    #[arg(value_enum)]
    shell: Shell,
}

impl CompletionsArgs {
    pub fn run(&self, mut command: Command, output: &mut Output) {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "partage", &mut script);
        output.bytes(&script);
    }
}

/// The arguments of `partage man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Create this folder and write one page for each command to it; without the flag, print the first page to stdout
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl ManArgs {
    /// Prints the first page, or writes all of them.
    pub fn run(&self, command: Command, output: &mut Output) -> Result<(), Failure> {
        let Some(dir) = &self.out else {
            let mut page = Vec::new();
            let made = clap_mangen::Man::new(command).render(&mut page);
            made.map_err(|error| Failure::failed(format!("cannot make the page: {error}")))?;
            output.bytes(&page);
            return Ok(());
        };
        let cannot = |error| Failure::failed(format!("cannot write to {}: {error}", dir.display()));
        std::fs::create_dir_all(dir).map_err(cannot)?;
        clap_mangen::generate_to(command, dir).map_err(cannot)?;
        say(&format!("written to {0}: read one with `man -l {0}/partage.1`", dir.display()));
        Ok(())
    }
}
