//! `partage coordinator list`: who leads, since when, at what term.

use super::shard::since;
use crate::client::ApiClient;
use crate::output::{Failure, Output, table};
use clap::Subcommand;
use partage_core::base::count::counted;
use partage_wire::json::{Coordinator, Coordinators};

/// The commands of `partage coordinator`.
#[derive(Debug, Subcommand)]
pub enum CoordinatorCommand {
    /// List all coordinators: which one leads, since when, at what term, and which ones stand by
    List {
        #[command(flatten)]
        client: ApiClient,
    },
}

impl CoordinatorCommand {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let CoordinatorCommand::List { client } = self;
        let all: Coordinators = client.get("/v1/coordinators").await?;
        if output.is_json() {
            return output.json(&all);
        }
        let mut rows = table(["coordinator", "address", "", "term", "since", "version"]);
        for one in &all.coordinators {
            let Coordinator { id, address, leads, term, since_ms, version } = one;
            rows.add_row([
                id.clone(),
                address.clone(),
                match (leads, term) {
                    (true, _) => "leads",
                    (false, Some(_)) => "elected, does not answer yet",
                    (false, None) => "stands by",
                }
                .to_owned(),
                term.map(|term| term.to_string()).unwrap_or_default(),
                since(*since_ms, false),
                version.clone(),
            ]);
        }
        for problem in &all.problems {
            output.text(&format!("wrong: {problem}"));
        }
        output.text(&rows.trim_fmt());
        let leader = all.coordinators.iter().any(|one| one.leads);
        let state = if leader { "" } else { "; no coordinator leads at the moment" };
        output.text(&format!("{} on {}{state}", counted(all.coordinators.len(), "coordinator"), all.backend));
        Ok(())
    }
}
