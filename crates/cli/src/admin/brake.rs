//! `partage brake`: automatic moves stopped, and let go again by a person.

use super::carry_out_and_wait;
use super::confirm::Yes;
use super::wait::Wait;
use crate::client::{ApiClient, DryRun};
use crate::output::{Failure, Output};
use clap::Subcommand;
use partage_wire::json::{Command, Summary};

/// The commands of `partage brake`.
#[derive(Debug, Subcommand)]
pub enum BrakeCommand {
    /// Show whether the brake stops automatic moves, and why; and whether automatic moves wait because nodes die or
    /// restart
    Show {
        #[command(flatten)]
        client: ApiClient,
    },
    /// Release the brake, so that automatic moves continue; the coordinator gives up nodes that are still silent, with
    /// the data that only they hold in memory
    Release {
        #[command(flatten)]
        client: ApiClient,
        #[command(flatten)]
        dry: DryRun,
        #[command(flatten)]
        yes: Yes,
        #[command(flatten)]
        wait: Wait,
    },
}

impl BrakeCommand {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            BrakeCommand::Show { client } => {
                let summary: Summary = client.get("/v1/status").await?;
                if output.is_json() {
                    let (brake, unrest) = (summary.brake, summary.unrest);
                    return output.json(&serde_json::json!({ "brake": brake, "unrest": unrest }));
                }
                output.text(&shown(summary));
                Ok(())
            }
            BrakeCommand::Release { client, dry, yes, wait } => {
                let command = Command::ReleaseBrake {};
                yes.ask(&client, &command, dry.dry_run).await?;
                carry_out_and_wait(&client, output, command, dry.dry_run, wait).await
            }
        }
    }
}

/// The brake, and on a line of its own what ends without a person.
fn shown(summary: Summary) -> String {
    let brake = summary.brake.map_or("off".to_owned(), |why| format!("on: {why}"));
    match summary.unrest {
        Some(why) => format!("{brake}\n{why}: nothing but repairs begins by itself until the nodes stay"),
        None => brake,
    }
}
