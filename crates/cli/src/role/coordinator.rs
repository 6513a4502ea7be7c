//! `partage coordinator`.

use super::{StopSignals, log, read};
use crate::coordination::CoordinationArgs;
use crate::door::{DoorArgs, make_state_private};
use crate::output::{Failure, Output, say};
use clap::Args;
use partage_coordinator::{Backing, Config, Coordinator, stores_maps_inline};
use partage_door::state::make_private;
use partage_wire::config::CoordinatorFile;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where it listens without a flag or key: loopback, as there is no authentication yet.
const LISTEN: &str = "127.0.0.1:7400";

/// The arguments of `partage coordinator`.
#[derive(Debug, Args)]
pub struct CoordinatorArgs {
    /// TOML configuration file; the book lists its keys
    #[arg(long, env = "PARTAGE_CONFIG")]
    config: Option<PathBuf>,
    /// host:port to listen on [default: 127.0.0.1:7400]
    #[arg(long, env = "PARTAGE_LISTEN")]
    listen: Option<String>,
    /// host:port where workers and other coordinators reach this coordinator [default: the address of --listen]
    #[arg(long, env = "PARTAGE_ADDRESS")]
    address: Option<String>,
    /// Name of this coordinator, unique among the coordinators [default: its address]
    #[arg(long, env = "PARTAGE_ID")]
    id: Option<String>,
    /// Directory for the coordinator's state; without it, the state is in memory and lost when the process ends. With
    /// etcd or ZooKeeper, the directory has this coordinator's part of the maps and the highest term that it has seen;
    /// with MySQL, it has only that term
    #[arg(long, env = "PARTAGE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    coordination: CoordinationArgs,
    #[command(flatten)]
    door: DoorArgs,
    /// Write logs as JSON
    #[arg(long)]
    log_json: bool,
}

impl CoordinatorArgs {
    /// Runs until it is asked to stop.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        log(self.log_json, "info");
        let mut signals = StopSignals::listen()?;
        make_state_private();
        let config = self.settled()?;
        if let Backing::Directory(folder) | Backing::Shared { data_dir: Some(folder), .. } = &config.backing {
            make_private(folder);
        }
        match &config.backing {
            Backing::Memory => say("no --data-dir: the state is in memory, and gone when this process ends"),
            Backing::Shared { target, data_dir: Some(_), .. } if stores_maps_inline(target.backend) => {
                say(&format!(
                    "--data-dir keeps the highest term that was seen, and nothing else: {} keeps the maps",
                    target.backend
                ));
            }
            Backing::Shared { target, data_dir: None, .. } if stores_maps_inline(target.backend) => {
                say(&format!(
                    "no --data-dir: give it one that outlives this process, for the highest term that was seen; without it \
                 a term can be given out twice after {} was restored from an older state",
                    target.backend
                ))
            }
            Backing::Directory(_) | Backing::Shared { .. } | Backing::Open { .. } => {}
        }
        let Some(coordinator) = signals.unless_asked(Coordinator::start(config)).await else { return Ok(()) };
        let coordinator = coordinator.map_err(Failure::failed)?;
        if output.is_json() {
            output.json(&serde_json::json!({ "coordinator": coordinator.address().to_string() }))?;
        } else {
            output.text(&format!("coordinator at http://{}", coordinator.address()));
        }
        output.flush();
        signals.asked_to_stop().await;
        coordinator.stop().await;
        Ok(())
    }

    /// Flags and environment over the file, that over the defaults; checked before anything begins.
    fn settled(self) -> Result<Config, Failure> {
        let file: CoordinatorFile = read(self.config.as_deref())?;
        let name = self.config.as_ref().map_or("the settings".to_owned(), |path| path.display().to_string());
        let listen = self.listen.or(file.listen.clone()).unwrap_or_else(|| LISTEN.to_owned());
        let listen: SocketAddr = listen.parse().map_err(|_| {
            Failure::usage(format!(
                "{listen:?} is no address to listen on: give an IP address and a port, such as {LISTEN}"
            ))
        })?;
        let data_dir = self.data_dir.or(file.data_dir.clone());
        let coordination = self.coordination.or(file.coordination.clone().unwrap_or_default());
        let backing = match (coordination.target()?, data_dir) {
            (Some(target), data_dir) => {
                Backing::Shared { target: Box::new(target), data_dir, session: coordination.session()? }
            }
            (None, Some(dir)) => Backing::Directory(dir),
            (None, None) => Backing::Memory,
        };
        let settings = file.settings(&name, &backing.default_settings()).map_err(Failure::usage)?;
        if let Backing::Shared { session, .. } = &backing
            && u128::from(settings.lease_ms) <= session.as_millis()
        {
            return Err(Failure::usage(format!(
                "{name}: lease_ms is {}, not above session_ms ({}): the loss of a leader would stop healthy workers; \
                 raise lease_ms",
                settings.lease_ms,
                session.as_millis()
            )));
        }
        let door = self.door.settled(&[listen], file.insecure, &file.door)?;
        let (address, id) = (self.address.or(file.address), self.id.or(file.id));
        Ok(Config { address, id, backing, settings, door, ..Config::new(listen) })
    }
}
