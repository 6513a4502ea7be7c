//! `partage node --id …`: a worker with the built-in service, an in-memory key-value store over HTTP. It is
//! `examples/kv`, which is there to be copied: a service of your own links the SDK the same way.

use super::{StopSignals, bind, left, log, read};
use crate::door::{DoorArgs, make_state_private};
use crate::output::{Failure, Output};
use clap::Args;
use partage_kv::{Config, Node, StartError};
use partage_wire::config::NodeFile;
use std::path::PathBuf;
use std::time::Duration;

/// The role of `partage node`
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// TOML configuration file; the book lists its keys
    #[arg(long, env = "PARTAGE_CONFIG")]
    config: Option<PathBuf>,
    /// Name of the node; use the same name at each restart
    #[arg(long, env = "PARTAGE_NODE_ID")]
    id: Option<String>,
    /// host:port to listen on [default: 127.0.0.1:0, which takes a free port]
    #[arg(long, env = "PARTAGE_LISTEN")]
    listen: Option<String>,
    /// host:port where coordinators, routers and other nodes reach this node [default: the address of --listen]
    #[arg(long)]
    address: Option<String>,
    /// Coordinators to join, as host:port separated by commas [default: PARTAGE_COORDINATOR, else 127.0.0.1:7400]
    #[arg(long, visible_alias = "coordinator", value_delimiter = ',', env = "PARTAGE_COORDINATORS")]
    join: Vec<String>,
    /// Zone whose nodes fail together; the coordinator spreads replicas over zones
    #[arg(long)]
    zone: Option<String>,
    /// Seconds that the node waits on SIGTERM until other nodes serve its shards; without a coordinator the node stops
    /// when its lease ends
    #[arg(long, default_value_t = 60)]
    leave_s: u64,
    #[command(flatten)]
    door: DoorArgs,
    /// Write logs as JSON
    #[arg(long)]
    log_json: bool,
}

impl NodeArgs {
    /// Runs until it is asked to stop, then leaves.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        log(self.log_json, "info");
        let mut signals = StopSignals::listen()?;
        make_state_private();
        let file: NodeFile = read(self.config.as_deref())?;
        let name = self.config.as_ref().map_or("the settings".to_owned(), |path| path.display().to_string());
        let no_id = || {
            Failure::usage("the node has no name: give --id NAME, or id in its configuration")
                .help("`partage node` starts a node; `partage node list` lists those that have joined")
        };
        let id = self.id.or(file.id.clone()).ok_or_else(no_id)?;
        let listen = self.listen.or(file.listen.clone()).unwrap_or_else(|| "127.0.0.1:0".to_owned());
        let listener = bind(&listen, "--listen").await?;
        let bound = listener.local_addr().map_err(Failure::failed)?;
        let door = self.door.settled(&[bound], file.insecure, &file.door)?;
        let bound = bound.to_string();
        let address = self.address.or(file.address.clone()).unwrap_or_else(|| bound.clone());
        // Refuses a bad name or address here, with the file named, rather than at the coordinator.
        file.spec(&name, &id, &address).map_err(Failure::usage)?;
        let config = Config {
            coordinators: super::coordinators(self.join, file.coordinators),
            advertise: Some(address),
            capacity: file.capacity.unwrap_or(1.0),
            zone: self.zone.or(file.zone),
            rack: file.rack,
            labels: file.labels,
            door,
            ..Config::new(id.clone(), "", listener)
        };
        let Some(node) = signals.unless_asked(Node::start(config)).await else { return Ok(()) };
        let node = node.map_err(|error: StartError| Failure::refused(error))?;
        if output.is_json() {
            output.json(&serde_json::json!({ "id": id, "address": bound }))?;
        } else {
            output.text(&format!("node {id} at http://{bound}"));
        }
        output.flush();
        signals.asked_to_stop().await;
        left(node.leave(Duration::from_secs(self.leave_s)).await)
    }
}
