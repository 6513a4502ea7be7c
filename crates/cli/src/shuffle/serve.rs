//! `partage shuffle serve`: a node that buffers and stores the records of shuffles.

use super::flight;
use super::objects::Objects;
use crate::door::{DoorArgs, make_state_private};
use crate::output::{Failure, Output};
use crate::role::{StopSignals, bind, coordinators, disk_limits, left, log, read, share};
use clap::Args;
use partage_service::shuffle::leader::OwnerQuota;
use partage_shuffle::DISK_LIMITS;
use partage_shuffle::node::{LEAST_MEMORY, NodeSettings, Roles};
use partage_shuffle::server::{Config, POOL, REPLICAS, SLOTS, ShuffleNode, StartError};
use partage_wire::config::NodeFile;
use std::path::PathBuf;
use std::time::Duration;

/// Where a node listens without a flag or key.
const LISTEN: &str = "127.0.0.1:7700";

/// Where batches and decisions are stored unless somebody says.
const DATA_DIR: &str = "partage-shuffles";

/// The role of `partage shuffle serve`
#[derive(Debug, Args)]
pub struct Serve {
    /// TOML configuration file; the book lists its keys
    #[arg(long, env = "PARTAGE_CONFIG")]
    config: Option<PathBuf>,
    /// Name of the node; use the same name at each restart
    #[arg(long, env = "PARTAGE_NODE_ID", value_name = "NAME")]
    id: Option<String>,
    /// Folder for records and decisions, of this node alone [default: partage-shuffles]
    #[arg(long, env = "PARTAGE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// host:port to listen on, for clients of shuffles, Arrow Flight, other nodes and HTTP [default: 127.0.0.1:7700]
    #[arg(long, env = "PARTAGE_LISTEN")]
    listen: Option<String>,
    /// host:port where coordinators, clients and other nodes reach this node [default: the address of --listen]
    #[arg(long)]
    address: Option<String>,
    /// Unix socket to listen on too, for clients on this machine [default: no such listener]
    #[arg(long, value_name = "PATH")]
    unix_listen: Option<PathBuf>,
    /// Coordinators to join, as host:port separated by commas [default: PARTAGE_COORDINATOR, else 127.0.0.1:7400]
    #[arg(long, visible_alias = "coordinator", value_delimiter = ',', env = "PARTAGE_COORDINATORS")]
    join: Vec<String>,
    /// Pool that the node is part of: a keyspace of kind shuffle, which the first node creates
    #[arg(long, default_value = POOL, value_name = "NAME")]
    pool: String,
    /// What the node does in the pool: `buffer` takes attempts of clients, `storage` stores records [default: buffer,storage]
    #[arg(long, value_name = "ROLES", env = "PARTAGE_SHUFFLE_ROLES")]
    roles: Option<Roles>,
    /// Number of slots of the pool, if this node creates it
    #[arg(long, default_value_t = SLOTS, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    slots: u32,
    /// Number of nodes that store each record, if this node creates the pool; `partage keyspace update` changes it later
    #[arg(long, default_value_t = REPLICAS, value_name = "COUNT")]
    replicas: u32,
    /// Memory for records that are buffered, stored, read and sent, with the suffix KiB, MiB or GiB
    #[arg(long, default_value = "1GiB", value_name = "SIZE", value_parser = memory, env = "PARTAGE_SHUFFLE_MEMORY")]
    memory: u64,
    /// Shuffles that an owner may have in the pool at a time; give each node the same [default: no limit]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    owner_shuffles: Option<u64>,
    /// Keys and values of an owner's shuffles from which on it starts no other one, with the suffix KiB, MiB or GiB; give each
    /// node the same [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = owner_bytes)]
    owner_bytes: Option<u64>,
    /// Share of the disk of --data-dir, 0 to 1, from which on nothing new is placed on this node; 1 = no limit
    /// [default: 0.85, or --disk-full if that is less]
    #[arg(long, value_name = "SHARE", value_parser = share, env = "PARTAGE_DISK_NEARLY_FULL")]
    disk_nearly_full: Option<f64>,
    /// Share of that disk from which on this node takes no new attempts; 1 = when the system has no room [default: 0.95]
    #[arg(long, value_name = "SHARE", value_parser = share, env = "PARTAGE_DISK_FULL")]
    disk_full: Option<f64>,
    /// Object store for sealed shuffles that the disk has no room for from --disk-nearly-full on, as s3://bucket/prefix,
    /// gs://…, az://… or a folder that all nodes have; give each node the same. Credentials come from the environment
    /// [default: none]
    #[arg(long, value_name = "URL", env = "PARTAGE_SHUFFLE_OBJECT_STORE")]
    object_store: Option<String>,
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

impl Serve {
    /// Runs until it is asked to stop.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        log(self.log_json, "info");
        let mut signals = StopSignals::listen()?;
        make_state_private();
        let leave = Duration::from_secs(self.leave_s);
        let unix = self.unix_listen.as_ref().map(|path| path.display().to_string());
        let (id, config) = self.settled().await?;
        let (pool, roles) = (config.pool.clone(), config.settings.roles);
        // As clients on other machines reach it.
        let announced = config.advertise.clone();
        let Some(node) = signals.unless_asked(ShuffleNode::start(config)).await else { return Ok(()) };
        let node = node.map_err(not_started)?;
        let address = node.address().to_string();
        let flight = flight::uri(announced.as_ref().unwrap_or(&address));
        if output.is_json() {
            let roles = roles.to_string();
            let told = serde_json::json!({
                "id": id, "pool": pool, "address": address, "unix": unix, "flight": flight,
                "roles": roles.split(',').collect::<Vec<_>>(),
            });
            output.json(&told)?;
        } else {
            let unix = unix.map(|path| format!(", and at unix:{path}")).unwrap_or_default();
            let flight = flight.map(|uri| format!(", Arrow Flight at {uri}")).unwrap_or_default();
            let does = match roles {
                Roles::Both => "",
                Roles::Buffer => ", which only buffers",
                Roles::Storage => ", which stores only",
            };
            output.text(&format!("node {id} of the pool {pool}{does} at {address}{unix}{flight}"));
        }
        output.flush();
        tokio::select! {
            () = signals.asked_to_stop() => {}
            why = node.ended() => {
                return Err(Failure::failed(format!("the node has ended by itself: {why}"))
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
        let mut file: NodeFile = read(self.config.as_deref())?;
        let name = self.config.as_ref().map_or("the settings".to_owned(), |path| path.display().to_string());
        let no_id = || Failure::usage("the node has no name: give --id NAME, or id in its configuration");
        let id = self.id.or(file.id.clone()).ok_or_else(no_id)?;
        let listen = self.listen.or(file.listen.clone()).unwrap_or_else(|| LISTEN.to_owned());
        let listener = bind(&listen, "--listen").await?;
        let bound = listener.local_addr().map_err(Failure::failed)?;
        let disk = disk_limits(self.disk_nearly_full, self.disk_full, DISK_LIMITS)?;
        let door = self.door.settled(&[bound], file.insecure, &file.door)?;
        let address = self.address.or(file.address.clone()).unwrap_or_else(|| bound.to_string());
        let roles = roles_of(std::mem::take(&mut file.roles), &name)?;
        // Refuses a bad name or address here, with the file named, rather than at the coordinator.
        let spec = file.spec(&name, &id, &address).map_err(Failure::usage)?;
        spec.check().map_err(Failure::usage)?;
        let folder = self.data_dir.unwrap_or_else(|| DATA_DIR.into());
        let coordinators = coordinators(self.join, file.coordinators);
        let object_store = self.object_store.as_deref().map(Objects::open).transpose()?;
        let owner_quota = OwnerQuota { shuffles: self.owner_shuffles, bytes: self.owner_bytes };
        let config = Config {
            advertise: Some(address),
            unix: self.unix_listen,
            capacity: file.capacity.unwrap_or(1.0),
            zone: self.zone.or(file.zone),
            rack: file.rack,
            labels: file.labels,
            pool: self.pool,
            slots: self.slots,
            replicas: self.replicas,
            settings: NodeSettings {
                roles: self.roles.unwrap_or(roles),
                owner_quota,
                ..NodeSettings::of_memory(self.memory)
            },
            disk,
            door,
            object_store,
            routes: flight::routes(),
            ..Config::new(id.clone(), coordinators, listener, folder)
        };
        Ok((id, config))
    }
}

/// The roles that a file gives, or all.
fn roles_of(file: Vec<String>, name: &str) -> Result<Roles, Failure> {
    if file.is_empty() {
        return Ok(Roles::default());
    }
    file.join(",").parse::<Roles>().map_err(|error| Failure::usage(format!("{name}: roles: {error}")))
}

/// A size in bytes.
fn size(text: &str) -> Option<u64> {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let found = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = found.unwrap_or((text, 0));
    number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift))
}

fn owner_bytes(text: &str) -> Result<u64, String> {
    let bytes = size(text).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "give a number of bytes, 1 or more, as 500MiB or 20GiB".to_owned())
}

fn memory(text: &str) -> Result<u64, String> {
    let least = LEAST_MEMORY >> 20;
    let bytes = size(text).filter(|bytes| *bytes >= LEAST_MEMORY);
    bytes.ok_or_else(|| format!("give a number of bytes, {least}MiB or more, as 512MiB or 2GiB"))
}

fn not_started(error: StartError) -> Failure {
    match error {
        StartError::Name(_) => Failure::usage(error),
        StartError::Listener(_)
        | StartError::Folder { .. }
        | StartError::Members(_)
        | StartError::Open(_)
        | StartError::Stopped(_) => Failure::failed(error),
        StartError::Worker(_) | StartError::Pool(_) => Failure::refused(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_of_a_file_are_words() {
        let of = |words: &[&str]| roles_of(words.iter().map(ToString::to_string).collect(), "node.toml");
        assert_eq!(of(&[]).ok(), Some(Roles::Both));
        assert_eq!(of(&["storage"]).ok(), Some(Roles::Storage));
        assert_eq!(of(&["storage", "buffer"]).ok(), Some(Roles::Both));
        assert!(of(&["leader"]).is_err_and(|why| why.to_string().contains("node.toml")));
    }

    #[test]
    fn sizes_of_memory_have_units_and_a_least() {
        assert_eq!(memory("1GiB"), Ok(1 << 30));
        assert_eq!(memory("512 MiB"), Ok(512 << 20));
        assert_eq!(memory("268435456"), Ok(256 << 20));
        for bad in ["", "GiB", "1", "63MiB", "-1GiB", "1GB", "99999999999999GiB"] {
            assert!(memory(bad).is_err(), "{bad}");
        }
        assert_eq!(owner_bytes("3KiB"), Ok(3 << 10));
        assert!(owner_bytes("0").is_err() && owner_bytes("few").is_err());
    }
}
