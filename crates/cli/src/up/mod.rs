//! `partage up`: everything on this machine, in one process, in seconds. A coordinator, some nodes with the
//! built-in key-value service, a router, and the package index of Debian 12 as sample data.
//!
//! Nothing here is special: the parts are those of `partage coordinator`, `node` and `router`, on loopback.
//! Only that nodes can be killed and added from outside, so that one can watch what happens, is `up`'s own
//! ([`stage`]).

mod sample;
mod stage;

use crate::client::Door;
use crate::output::{Failure, Output};
use crate::role::asked_to_stop;
use clap::Args;
use partage_coordinator::{Config, Coordinator};
use partage_router::{Options, Router, proxy};
use serde::Serialize;
use stage::Stage;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The coordinator's port; the others follow it.
const PORT: u16 = 7400;

/// How long everything may take to be there.
const READY: Duration = Duration::from_secs(60);

/// `partage up`
#[derive(Debug, Args)]
pub struct UpArgs {
    /// How many nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// Keep the coordinator's state here, to go on with next time
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// The coordinator's port: the router is one above, the stage two above, nodes from eleven above; 0 takes
    /// any that are free
    #[arg(long, default_value_t = PORT)]
    port: u16,
}

/// The addresses, as `--json` prints them.
#[derive(Debug, Serialize)]
struct Addresses {
    coordinator: String,
    router: String,
    stage: String,
    nodes: Vec<NodeAddress>,
}

#[derive(Debug, Serialize)]
struct NodeAddress {
    id: String,
    address: String,
}

impl UpArgs {
    /// Runs until it is asked to stop.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        quiet_log();
        let sample = sample::read()?;
        let coordinator = self.coordinator().await?;
        let door = Door { coordinator: coordinator.address().to_string(), who: "up".to_owned() };
        let stage = Stage::new(door.coordinator.clone(), sample.seed());
        for number in 1..=self.nodes {
            stage.add(&format!("n{number}"), self.address(10 + number)).await?;
        }
        let control = stage.open(self.address(2)).await?;
        let router = Router::connect(vec![door.coordinator.clone()], Options::default()).await;
        let config = proxy::Config { listen: self.address(1), ..proxy::Config::default() };
        let proxy = proxy::serve(&router, config).await.map_err(Failure::failed)?;
        sample.create_keyspaces(&door).await?;
        sample::wait_until_served(&door, READY).await?;
        let nodes =
            stage.nodes().into_iter().map(|(id, address)| NodeAddress { id, address: address.to_string() });
        let addresses = Addresses {
            coordinator: door.coordinator,
            router: proxy.address().to_string(),
            stage: control.to_string(),
            nodes: nodes.collect(),
        };
        if output.is_json() {
            output.json(&addresses)?;
        } else {
            output.text(&welcome(&addresses, sample.len(), self.port == PORT));
        }
        output.flush();
        asked_to_stop().await?;
        proxy.stop().await;
        stage.clear();
        coordinator.stop().await;
        Ok(())
    }

    fn address(&self, above: u16) -> SocketAddr {
        let port = if self.port == 0 { 0 } else { self.port.saturating_add(above) };
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    async fn coordinator(&self) -> Result<Coordinator, Failure> {
        let config = Config { data_dir: self.data_dir.clone(), ..Config::new(self.address(0)) };
        let started = Coordinator::start(config).await;
        started.map_err(|error| {
            Failure::failed(error).help("another `up` may run: choose a free --port, or 0 for any")
        })
    }
}

/// Warnings only: what happens is to be watched with the commands, not read past.
fn quiet_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("error"));
    // A second call finds the first in place, which is as good.
    let _ =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).compact().try_init();
}

fn welcome(at: &Addresses, rows: usize, usual_port: bool) -> String {
    let (router, stage) = (&at.router, &at.stage);
    let door = if usual_port { String::new() } else { format!(" --coordinator {}", at.coordinator) };
    let names: Vec<_> = at.nodes.iter().map(|node| format!("{} at {}", node.id, node.address)).collect();
    format!(
        "Partage is up: {rows} packages on {} nodes.

  coordinator  http://{}
  router       http://{router}
  nodes        {}

Try, in another terminal:

  curl http://{router}/packages/libc6             look a package up
  curl -X PUT http://{router}/notes/hello -d hi   write something, and read it back
  partage status{door}
  partage shard list packages{door}               shards × nodes
  partage explain packages libc6{door}            why it is where it is
  curl -X POST http://{stage}/kill/n2             kill a node: its shards are served on, then placed again
  curl -X POST http://{stage}/add/n9              add one
  partage plan list{door}                         a plan for `notes` waits for you: show it, approve it
  partage node drain n1{door}                     empty a node without losing a request
  partage node --id n10 --join {}     a node in a process of its own; kill -9 it

Ctrl-C stops everything.",
        at.nodes.len(),
        at.coordinator,
        names.join(", "),
        at.coordinator,
    )
}
