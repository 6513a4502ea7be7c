//! `partage coordinator`.

use super::{asked_to_stop, log, read};
use crate::output::{Failure, Output, say};
use clap::Args;
use partage_coordinator::{Config, Coordinator};
use partage_wire::config::CoordinatorFile;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where it listens if nobody says otherwise: loopback, as there is no authentication yet.
const LISTEN: &str = "127.0.0.1:7400";

/// `partage coordinator`
#[derive(Debug, Args)]
pub struct CoordinatorArgs {
    /// A TOML file; see the book for its keys
    #[arg(long, env = "PARTAGE_CONFIG")]
    config: Option<PathBuf>,
    /// host:port to listen on [default: 127.0.0.1:7400]
    #[arg(long, env = "PARTAGE_LISTEN")]
    listen: Option<String>,
    /// Where the state is kept; without it, it is gone with the process
    #[arg(long, env = "PARTAGE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Logs as JSON
    #[arg(long)]
    log_json: bool,
}

impl CoordinatorArgs {
    /// Runs until it is asked to stop.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        log(self.log_json, "info");
        let file: CoordinatorFile = read(self.config.as_deref())?;
        let name = self.config.as_ref().map_or("the settings".to_owned(), |path| path.display().to_string());
        let settings = file.settings(&name).map_err(Failure::usage)?;
        let listen = self.listen.or(file.listen).unwrap_or_else(|| LISTEN.to_owned());
        let listen: SocketAddr = listen.parse().map_err(|_| {
            Failure::usage(format!(
                "{listen:?} is no address to listen on: give an IP address and a port, such as {LISTEN}"
            ))
        })?;
        let data_dir = self.data_dir.or(file.data_dir);
        if data_dir.is_none() {
            say("no --data-dir: the state is in memory, and gone when this process ends");
        }
        let coordinator = Coordinator::start(Config { data_dir, settings, ..Config::new(listen) })
            .await
            .map_err(Failure::failed)?;
        if output.is_json() {
            output.json(&serde_json::json!({ "coordinator": coordinator.address().to_string() }))?;
        } else {
            output.text(&format!("coordinator at http://{}", coordinator.address()));
        }
        output.flush();
        asked_to_stop().await?;
        coordinator.stop().await;
        Ok(())
    }
}
