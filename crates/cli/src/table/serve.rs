//! `partage table serve`: a node that stores and serves replicas of tables.

use crate::door::{DoorArgs, make_state_private};
use crate::output::{Failure, Output};
use crate::role::{StopSignals, bind, coordinators, disk_limits, left, log, read, share};
use clap::Args;
use partage_core::base::name::KeyspaceName;
use partage_core::node::NodeSpec;
use partage_table::server::{Config, RedisConfig, StartError, TableNode};
use partage_table::{CopySettings, DISK_LIMITS, LEAST_COPY_BYTES_PER_S, NodeSettings};
use partage_wire::config::NodeFile;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;

/// Where a node listens without a flag or key.
pub const LISTEN: &str = "127.0.0.1:7600";

/// The folder for replicas if no flag names another.
const DATA_DIR: &str = "partage-tables";

/// The role of `partage table serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// TOML configuration file; the book lists its keys
    #[arg(long, env = "PARTAGE_CONFIG")]
    config: Option<PathBuf>,
    /// Name of the node; use the same name at each restart
    #[arg(long, env = "PARTAGE_NODE_ID", value_name = "NAME")]
    id: Option<String>,
    /// Folder for the log and the replicas, of this node alone [default: partage-tables]
    #[arg(long, env = "PARTAGE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// host:port to listen on [default: 127.0.0.1:7600]
    #[arg(long, env = "PARTAGE_LISTEN")]
    listen: Option<String>,
    /// host:port where coordinators and other nodes reach this node [default: the address of --listen]
    #[arg(long)]
    address: Option<String>,
    /// host:port to listen on for clients of Redis [default: no such listener]
    #[arg(long, value_name = "HOST:PORT")]
    redis_listen: Option<String>,
    /// Table of Redis clients that name none as the user of AUTH [default: the table that the node has, if it is the only one]
    #[arg(long, value_name = "TABLE", requires = "redis_listen")]
    redis_table: Option<String>,
    /// host:port where Redis clients reach this node, to which other nodes redirect them [default: the address of --redis-listen]
    #[arg(long, value_name = "HOST:PORT", requires = "redis_listen")]
    redis_address: Option<String>,
    /// Ask other nodes on behalf of Redis clients, where the node could redirect them: for clients that do not follow redirects.
    /// Only tables sharded by crc16 with hash tags have redirects
    #[arg(long, requires = "redis_listen")]
    redis_forward: bool,
    /// Coordinators to join, as host:port separated by commas [default: PARTAGE_COORDINATOR, else 127.0.0.1:7400]
    #[arg(long, visible_alias = "coordinator", value_delimiter = ',', env = "PARTAGE_COORDINATORS")]
    join: Vec<String>,
    /// Share of the disk of --data-dir, 0 to 1, from which on nothing new is placed on this node; 1 = no limit
    /// [default: 0.95, or --disk-full if that is less]
    #[arg(long, value_name = "SHARE", value_parser = share, env = "PARTAGE_DISK_NEARLY_FULL")]
    disk_nearly_full: Option<f64>,
    /// Share of that disk from which on this node refuses writes, and other nodes lead; 1 = when the system has no room
    /// [default: 0.98]
    #[arg(long, value_name = "SHARE", value_parser = share, env = "PARTAGE_DISK_FULL")]
    disk_full: Option<f64>,
    /// Bytes of rows a second that this node copies to and from other replicas, which are new or behind, or of shards that are
    /// split or merged: all copies share them; 4194304 at least [default: 67108864]
    #[arg(long, value_name = "BYTES", value_parser = copy_bytes, env = "PARTAGE_COPY_BYTES_PER_S")]
    copy_bytes_per_s: Option<u64>,
    /// Share of the time, 1 to 100 percent, in which copies of rows work while clients write; 100 = they do not give way
    /// [default: 25]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=100), env = "PARTAGE_COPY_BUSY_PERCENT")]
    copy_busy_percent: Option<u64>,
    /// Zone whose nodes fail together; the coordinator spreads replicas over zones
    #[arg(long)]
    zone: Option<String>,
    /// Seconds that the node waits on SIGTERM until other nodes have all that it has; 0 = stop at once, and keep what is
    /// stored for the next start
    #[arg(long, default_value_t = 0)]
    leave_s: u64,
    #[command(flatten)]
    door: DoorArgs,
    /// Write logs as JSON
    #[arg(long)]
    log_json: bool,
}

impl ServeArgs {
    /// Runs until it is asked to stop.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        log(self.log_json, "info");
        let mut signals = StopSignals::listen()?;
        make_state_private();
        let leave = Duration::from_secs(self.leave_s);
        let (id, config) = self.settled().await?;
        let Some(node) = signals.unless_asked(TableNode::start(config)).await else { return Ok(()) };
        let node = node.map_err(not_started)?;
        let address = node.address().to_string();
        let redis = node.redis_address().map(|address| address.to_string());
        if output.is_json() {
            output.json(&serde_json::json!({ "id": id, "address": address, "resp": redis }))?;
        } else {
            let redis = redis.map(|redis| format!(", for Redis clients at {redis}")).unwrap_or_default();
            output.text(&format!("table node {id} at http://{address}{redis}"));
        }
        output.flush();
        tokio::select! {
            () = signals.asked_to_stop() => {}
            why = node.ended() => {
                return Err(Failure::failed(format!("the disk of the log has failed: {why}"))
                    .help("mend or replace the disk, and start the node again: what it lacks comes from other nodes"));
            }
        }
        if leave.is_zero() {
            node.shutdown().await;
            return Ok(());
        }
        left(node.leave(leave).await)
    }

    async fn settled(self) -> Result<(String, Config), Failure> {
        let file: NodeFile = read(self.config.as_deref())?;
        let name = self.config.as_ref().map_or("the settings".to_owned(), |path| path.display().to_string());
        let no_id = || Failure::usage("the node has no name: give --id NAME, or id in its configuration");
        let id = self.id.or(file.id.clone()).ok_or_else(no_id)?;
        let listen = self.listen.or(file.listen.clone()).unwrap_or_else(|| LISTEN.to_owned());
        let listener = bind(&listen, "--listen").await?;
        let bound = listener.local_addr().map_err(Failure::failed)?;
        let redis = match &self.redis_listen {
            Some(listen) => Some(bind(listen, "--redis-listen").await?),
            None => None,
        };
        let at = redis.as_ref().map(TcpListener::local_addr).transpose().map_err(Failure::failed)?;
        let bounds: Vec<_> = std::iter::once(bound).chain(at).collect();
        let table = self.redis_table.as_deref().map(KeyspaceName::new).transpose().map_err(Failure::usage)?;
        let (advertise, forwards) = (self.redis_address, self.redis_forward);
        let disk = disk_limits(self.disk_nearly_full, self.disk_full, DISK_LIMITS)?;
        let copies = copies(self.copy_bytes_per_s, self.copy_busy_percent);
        let door = self.door.settled(&bounds, file.insecure, &file.door)?;
        let address = self.address.or(file.address.clone()).unwrap_or_else(|| bound.to_string());
        // Refuses a bad name or address here, with the file named, rather than at the coordinator.
        let spec = file.spec(&name, &id, &address).map_err(Failure::usage)?;
        let spec = NodeSpec { resp_address: advertise.clone(), ..spec };
        spec.check().map_err(Failure::usage)?;
        let folder = self.data_dir.unwrap_or_else(|| DATA_DIR.into());
        let config = Config {
            coordinators: coordinators(self.join, file.coordinators),
            advertise: Some(address),
            capacity: file.capacity.unwrap_or(1.0),
            zone: self.zone.or(file.zone),
            rack: file.rack,
            labels: file.labels,
            redis: redis.map(|listener| RedisConfig {
                table,
                advertise,
                forwards,
                ..RedisConfig::new(listener)
            }),
            settings: NodeSettings { disk, copies, ..NodeSettings::default() },
            door,
            ..Config::new(id.clone(), "", listener, folder)
        };
        Ok((id, config))
    }
}

/// Bytes of copies in a second.
fn copy_bytes(text: &str) -> Result<u64, String> {
    let bytes = text.parse::<u64>().ok().filter(|bytes| *bytes >= LEAST_COPY_BYTES_PER_S);
    bytes.ok_or_else(|| format!("give a number of bytes, {LEAST_COPY_BYTES_PER_S} or more"))
}

fn copies(bytes_per_s: Option<u64>, busy_percent: Option<u64>) -> CopySettings {
    let default = CopySettings::default();
    CopySettings {
        bytes_per_s: bytes_per_s.unwrap_or(default.bytes_per_s),
        busy_percent: busy_percent.unwrap_or(default.busy_percent),
        ..default
    }
}

fn not_started(error: StartError) -> Failure {
    match error {
        StartError::Name(_) => Failure::usage(error),
        StartError::Listener(_) | StartError::Open(_) => Failure::failed(error),
        StartError::Worker(_) => Failure::refused(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_a_limit_that_lets_them_go_on() {
        assert_eq!(copies(None, None), CopySettings::default());
        let given = CopySettings { bytes_per_s: 5 << 20, busy_percent: 100, ..CopySettings::default() };
        assert_eq!(copies(Some(5 << 20), Some(100)), given);
        assert_eq!(copy_bytes("4194304"), Ok(4 << 20));
        for bad in ["0", "4194303", "-1", "64MiB", ""] {
            assert!(copy_bytes(bad).is_err(), "{bad}");
        }
        let default = (CopySettings::default().bytes_per_s, CopySettings::default().busy_percent);
        assert_eq!(default, (67_108_864, 25), "as --help says");
    }
}
