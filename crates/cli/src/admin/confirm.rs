//! A question before something is lost, or given up, for good.

use crate::client::ApiClient;
use crate::output::{self, Failure};
use clap::Args;
use partage_wire::json::Command;
use std::io::IsTerminal;

/// The flag `--yes` of commands after which something is lost, or given up, for good.
#[derive(Debug, Clone, Copy, Args)]
pub struct Yes {
    /// Do not ask for confirmation; required where there is no terminal
    #[arg(long, short = 'y')]
    yes: bool,
}

impl Yes {
    /// Whether the person has said `--yes`, so that the command asks no question.
    pub fn is_given(self) -> bool {
        self.yes
    }

    /// Asks a person whether the command is meant, in the words that a dry run of it has. What would be refused anyway
    /// is refused without a question.
    pub async fn ask(self, client: &ApiClient, command: &Command, dry_run: bool) -> Result<(), Failure> {
        if self.yes || dry_run {
            return Ok(());
        }
        let foreseen = client.command(command.clone(), true).await?;
        self.ask_for(&foreseen.summary, &foreseen.warnings)
    }

    /// Asks a person whether this is meant: what the command would do, as in "delete keyspace kv", and what is to be said
    /// about it.
    ///
    /// # Errors
    /// When the person does not say yes, or there is no terminal to ask on.
    pub fn ask_for(self, what: &str, warnings: &[String]) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        let warnings: String = warnings.iter().map(|warning| format!("\nwarning: {warning}")).collect();
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(Failure::usage(format!(
                "this would {what}{warnings}: nothing was changed, as there is no terminal to ask on"
            ))
            .help("say --yes if that is meant; --dry-run shows all that would follow"));
        }
        match is_yes(&format!("This will {what}.{warnings}\nGo on? [y/N] "))? {
            true => Ok(()),
            false => Err(Failure::refused("nothing was changed")),
        }
    }
}

fn is_yes(question: &str) -> Result<bool, Failure> {
    let cannot = |error: std::io::Error| Failure::failed(format!("cannot ask: {error}"));
    let line = output::ask(question).map_err(cannot)?;
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}
