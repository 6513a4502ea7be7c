//! `partage brake`: automatic moves stopped, and let go again by a person.

use super::begin;
use super::confirm::Yes;
use super::wait::Wait;
use crate::client::{Door, DryRun};
use crate::output::{Failure, Output};
use clap::Subcommand;
use partage_wire::json::{Command, Summary};

/// `partage brake …`
#[derive(Debug, Subcommand)]
pub enum BrakeCommand {
    /// Whether automatic moves are stopped, and why
    Show {
        #[command(flatten)]
        door: Door,
    },
    /// Let automatic moves go on; nodes that are silent by then are given up, with what only they hold in memory
    Release {
        #[command(flatten)]
        door: Door,
        #[command(flatten)]
        dry: DryRun,
        #[command(flatten)]
        yes: Yes,
        #[command(flatten)]
        wait: Wait,
    },
}

impl BrakeCommand {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            BrakeCommand::Show { door } => {
                let summary: Summary = door.get("/v1/status").await?;
                if output.is_json() {
                    return output.json(&serde_json::json!({ "brake": summary.brake }));
                }
                output.text(&summary.brake.map_or("off".to_owned(), |why| format!("on: {why}")));
                Ok(())
            }
            BrakeCommand::Release { door, dry, yes, wait } => {
                let command = Command::ReleaseBrake {};
                yes.ask(&door, &command, dry.dry_run).await?;
                begin(&door, output, command, dry.dry_run, wait).await
            }
        }
    }
}
