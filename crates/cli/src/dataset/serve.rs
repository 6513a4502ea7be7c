//! `partage dataset serve`: a node that serves the datasets of a source, alone or with others.

use super::neighbours::{self, GossipConfig, OwnAddress};
use super::settings::{named, open, open_away};
use crate::coordination::CoordinationArgs;
use crate::door::{DoorArgs, make_state_private};
use crate::output::{Failure, Output};
use crate::role::{StopSignals, caught, left, log, read};
use clap::Args;
use partage_coordination::embedded::Embedded;
use partage_coordination::gossip::keys::Keys;
use partage_coordination::{Backend, Coordination, Late, Listen, Target};
use partage_dataset::local::Store;
use partage_dataset::node::{Handle, Membership, Node, NodeOptions, StartError};
use partage_dataset::serve::Settings;
use partage_dataset::source::Throttle;
use partage_door::state::make_private;
use partage_service::dataset::fetch::FetchSettings;
use partage_service::dataset::node::Spread;
use partage_service::dataset::{Address, Dealing, Replication, Seat};
use partage_wire::config::{DatasetNodeFile, NodeFile};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind};

/// Where a node listens without a flag or key: the port of Sequins.
pub const LISTEN: &str = "127.0.0.1:9599";

/// The folder for store files if no flag names another.
const DATA_DIR: &str = "partage-datasets";

/// The role of `partage dataset serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// TOML configuration file; the book lists its keys
    #[arg(long, env = "PARTAGE_CONFIG")]
    config: Option<PathBuf>,
    /// A folder or URL with datasets: /data, s3://bucket/prefix?endpoint=http://host:9000 and others
    #[arg(long, env = "PARTAGE_DATASET_SOURCE", value_name = "URL")]
    source: Option<String>,
    /// Folder for the store files [default: partage-datasets]
    #[arg(long, env = "PARTAGE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// host:port to listen on [default: 127.0.0.1:9599]
    #[arg(long, env = "PARTAGE_LISTEN")]
    listen: Option<String>,
    /// host:port where peers reach this node [default: the address of --listen]
    #[arg(long)]
    address: Option<String>,
    /// Name of the cluster of dataset nodes that this node belongs to [default: default]
    #[arg(long)]
    cluster: Option<String>,
    /// Coordinators that assign partitions to this node, as host:port separated by commas; without coordinators, the
    /// node computes its partitions from the nodes that are present
    #[arg(long, value_delimiter = ',', env = "PARTAGE_COORDINATORS", value_name = "HOST:PORT")]
    coordinator: Vec<String>,
    /// Name of the node under a coordinator; use the same name at each restart
    #[arg(long, env = "PARTAGE_NODE_ID", value_name = "NAME")]
    id: Option<String>,
    /// Zone whose nodes fail together; the coordinator spreads replicas over zones
    #[arg(long)]
    zone: Option<String>,
    /// Seconds that a node under a coordinator waits on SIGTERM until other nodes have all that it has
    #[arg(long, default_value_t = 60)]
    leave_s: u64,
    #[command(flatten)]
    coordination: CoordinationArgs,
    /// host:port for gossip, with --coordination gossip://… [default: a free port on loopback] or under a coordinator
    /// [default: the port of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    gossip: Option<String>,
    /// File with the key that encrypts gossip, the same on every node: `openssl rand -hex 32 > FILE; chmod 600 FILE`
    /// [default: gossip is not encrypted, and needs --insecure at an address that other machines can reach]
    #[arg(long, env = "PARTAGE_GOSSIP_KEY_FILE", value_name = "FILE")]
    gossip_key_file: Option<PathBuf>,
    /// Dataset to serve; repeatable [default: all datasets of the source]
    #[arg(long = "dataset", value_name = "NAME")]
    datasets: Vec<String>,
    /// Seat of this node: its number among the nodes, from which it computes its partitions [default: the smallest free number]
    #[arg(long, alias = "shard-id")]
    seat: Option<u32>,
    /// Number of nodes that have each partition [default: 2]
    #[arg(long)]
    replication: Option<u32>,
    /// Number of nodes that must have each partition before clients get a version [default: 1]
    #[arg(long)]
    min_replication: Option<u32>,
    #[command(flatten)]
    door: DoorArgs,
    /// Write logs as JSON
    #[arg(long)]
    log_json: bool,
}

impl ServeArgs {
    /// Runs until it is asked to stop, then leaves.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        log(self.log_json, "info");
        let mut signals = StopSignals::listen()?;
        let hangup = caught(SignalKind::hangup())?;
        make_state_private();
        let file: DatasetNodeFile = read(self.config.as_deref())?;
        let no_source =
            || Failure::usage("the node has no source: give --source URL, or source in its configuration");
        let url = self.source.clone().or(file.source.clone()).ok_or_else(no_source)?;
        let has_stored = self.data_dir(&file).join("datasets").is_dir();
        let source = if has_stored { open_away(&url) } else { open(&url) }?;
        let mut options = self.options(&file)?;
        options.is_alone = options.coordinator.is_none() && self.target(&file)?.is_none();
        let here = OwnAddress::default();
        let coordination = self.coordination(&file, &options, here.clone())?;
        // Where the data directory belongs to another user, the store in it is this node's still.
        make_private(&options.data_dir);
        make_private(&Store::folder_in(&options.data_dir));
        let announced = options.address.as_ref().map(Address::to_string);
        let starting = Node::start(options, coordination, source);
        let Some(node) = signals.unless_asked(starting).await else { return Ok(()) };
        let node = node.map_err(not_started)?;
        // It is said once.
        let _ = here.set(announced.unwrap_or_else(|| node.address().to_string()));
        if output.is_json() {
            output.json(&serde_json::json!({ "address": node.address().to_string() }))?;
        } else {
            output.text(&format!("dataset node at http://{}", node.address()));
        }
        output.flush();
        let hearing = tokio::spawn(refresh_on_signal(hangup, node.handle().clone()));
        signals.asked_to_stop().await;
        hearing.abort();
        left(node.leave(Duration::from_secs(self.leave_s)).await)
    }

    /// The coordination service that is named.
    fn target(&self, file: &DatasetNodeFile) -> Result<Option<Target>, Failure> {
        self.coordination.clone().or(file.coordination.clone().unwrap_or_default()).any_target()
    }

    fn coordination(
        &self,
        file: &DatasetNodeFile,
        options: &NodeOptions,
        here: OwnAddress,
    ) -> Result<Arc<dyn Coordination>, Failure> {
        let gossip = self.gossip.clone().or(file.gossip.clone());
        let key_file = self.gossip_key_file.clone().or(file.gossip_key_file.clone());
        if let Some(path) = &key_file {
            // Now, while a person looks: gossip reads it when it begins.
            Keys::read(path).map_err(Failure::usage)?;
        }
        match (self.target(file)?, &options.coordinator) {
            (None, Some(membership)) => {
                let config = GossipConfig {
                    cluster: options.cluster.clone(),
                    listen: gossip.as_deref().map(gossip_at).transpose()?,
                    ip: options.listen.ip(),
                    key_file,
                    data_dir: options.data_dir.clone(),
                    here,
                };
                Ok(neighbours::gossip(membership, config))
            }
            (None, None) if gossip.is_some() => {
                Err(Failure::usage("--gossip goes with --coordination gossip://HOST:PORT of another node"))
            }
            (Some(target), _) if target.backend == Backend::Gossip => {
                let target = Target { gossip_key_file: key_file, ..with_listen(target, gossip)? };
                Ok(Arc::new(Late::new(target)))
            }
            (_, None) if key_file.is_some() => Err(Failure::usage(
                "--gossip-key-file goes with gossip: --coordination gossip://…, or --coordinator",
            )),
            (None, None) => Ok(Embedded::in_memory()),
            (Some(target), _) => Ok(Arc::new(Late::new(with_listen(target, gossip)?))),
        }
    }

    fn data_dir(&self, file: &DatasetNodeFile) -> PathBuf {
        self.data_dir.clone().or(file.data_dir.clone()).unwrap_or_else(|| DATA_DIR.into())
    }

    fn options(&self, file: &DatasetNodeFile) -> Result<NodeOptions, Failure> {
        let listen = self.listen.as_deref().or(file.listen.as_deref()).unwrap_or(LISTEN);
        let listen: SocketAddr = listen.parse().map_err(|_| {
            Failure::usage(format!("--listen {listen:?} is no address: give ip:port, such as {LISTEN}"))
        })?;
        let cluster = self.cluster.as_deref().or(file.cluster.as_deref()).unwrap_or("default");
        let mut options = NodeOptions::new(named(cluster)?, listen, self.data_dir(file));
        let address = self.address.as_deref().or(file.address.as_deref());
        options.address = address.map(Address::new).transpose().map_err(Failure::usage)?;
        let datasets = if self.datasets.is_empty() { &file.datasets } else { &self.datasets };
        options.datasets = datasets.iter().map(|name| named(name)).collect::<Result<_, _>>()?;
        options.seat = self.seat.or(file.seat).map(Seat);
        options.spread = self.spread(file)?;
        options.re_replicate = file.re_replicate.unwrap_or(options.re_replicate);
        options.stable = file.stable_s.map_or(options.stable, Duration::from_secs);
        options.keep = file.keep_s.map_or(options.keep, Duration::from_secs);
        options.refresh =
            file.refresh_s.map_or(options.refresh, Duration::from_secs).max(Duration::from_secs(1));
        let args = self.coordination.clone().or(file.coordination.clone().unwrap_or_default());
        options.session_ttl = args.session_or(options.session_ttl)?;
        options.throttle = Throttle::new(file.load_bytes_s.unwrap_or(0));
        options.load_at_once = file.load_at_once.unwrap_or(options.load_at_once).max(1);
        options.load_by_link = file.load_by_link.unwrap_or(options.load_by_link);
        options.load_memory_bytes =
            file.load_memory_mib.map_or(options.load_memory_bytes, |mib| mib.saturating_mul(1 << 20));
        options.serve = served(file);
        options.serve.door = self.opened(file, listen)?;
        options.let_go = file.let_go_s.map_or(options.let_go, Duration::from_secs);
        options.coordinator = self.membership(file, &options)?;
        Ok(options)
    }

    fn opened(&self, file: &DatasetNodeFile, listen: SocketAddr) -> Result<partage_door::Settings, Failure> {
        let settings = self.door.clone().settled(&[listen], file.insecure, &file.door)?;
        let gossip = self.gossip.as_deref().or(file.gossip.as_deref()).map(gossip_at).transpose()?;
        // Under a coordinator it listens where clients connect, unless another address is named.
        let gossips = self.target(file)?.is_none() && !self.coordinators(file).is_empty();
        if let Some(at) = gossip.or(gossips.then_some(listen)) {
            let has_key = self.gossip_key_file.is_some() || file.gossip_key_file.is_some();
            self.door.check_gossip(at, has_key, file.insecure)?;
        }
        Ok(settings)
    }

    fn coordinators<'a>(&'a self, file: &'a DatasetNodeFile) -> &'a [String] {
        if self.coordinator.is_empty() { &file.coordinators } else { &self.coordinator }
    }

    /// Its place under a coordinator, if it is to have one.
    fn membership(
        &self,
        file: &DatasetNodeFile,
        options: &NodeOptions,
    ) -> Result<Option<Membership>, Failure> {
        let coordinators = self.coordinators(file).to_vec();
        if coordinators.is_empty() {
            return Ok(None);
        }
        let computing = [
            ("--seat", options.seat.is_some()),
            ("dealing", file.dealing.is_some()),
            ("re_replicate", file.re_replicate.is_some()),
            ("max_replication", options.spread.replication.max.is_some()),
        ];
        if let Some((what, _)) = computing.into_iter().find(|(_, is_said)| *is_said) {
            return Err(Failure::usage(format!(
                "{what} is for a node that computes what it takes: under a coordinator leave it out, and see `partage \
                 keyspace update`"
            )));
        }
        let no_id = || {
            Failure::usage(
                "a node under a coordinator needs a name: give --id NAME, or id in its configuration",
            )
        };
        let membership = Membership {
            id: self.id.clone().or(file.id.clone()).ok_or_else(no_id)?,
            coordinators,
            capacity: file.capacity.unwrap_or(1.0),
            zone: self.zone.clone().or(file.zone.clone()),
            rack: file.rack.clone(),
            labels: file.labels.clone(),
        };
        // Refused here rather than at the coordinator. Where it listens is checked where it is used.
        let announced = NodeFile {
            capacity: Some(membership.capacity),
            zone: membership.zone.clone(),
            rack: membership.rack.clone(),
            labels: membership.labels.clone(),
            ..NodeFile::default()
        };
        let name = self.config.as_ref().map_or("the settings".to_owned(), |path| path.display().to_string());
        announced.spec(&name, &membership.id, LISTEN).map_err(Failure::usage)?;
        Ok(Some(membership))
    }

    fn spread(&self, file: &DatasetNodeFile) -> Result<Spread, Failure> {
        let default = Spread::default();
        let replication = Replication {
            wanted: self.replication.or(file.replication).unwrap_or(default.replication.wanted),
            min: self.min_replication.or(file.min_replication).unwrap_or(default.replication.min),
            max: file.max_replication.or(default.replication.max),
        };
        replication.check().map_err(Failure::usage)?;
        let dealing =
            file.dealing.as_deref().map(str::parse::<Dealing>).transpose().map_err(Failure::usage)?;
        Ok(Spread { replication, dealing: dealing.unwrap_or(default.dealing) })
    }
}

fn not_started(error: StartError) -> Failure {
    match error {
        StartError::Serve(_) => Failure::failed(error)
            .help("choose another address with --listen, or stop the process that uses this one"),
        StartError::Store(_) => Failure::failed(error),
        StartError::Replication(_) | StartError::Address(_) => Failure::usage(error),
    }
}

fn served(file: &DatasetNodeFile) -> Settings {
    let default = FetchSettings::default();
    let fetch = FetchSettings {
        stage_ms: file.proxy_stage_ms.unwrap_or(default.stage_ms),
        total_ms: file.proxy_ms.unwrap_or(default.total_ms),
    };
    let settings = Settings::default();
    let idle = file.idle_s.map_or(settings.idle, |seconds| Duration::from_secs(seconds.max(1)));
    Settings { threads: file.threads.unwrap_or(0), fetch, idle, ..settings }
}

fn gossip_at(text: &str) -> Result<SocketAddr, Failure> {
    text.parse().map_err(|_| {
        Failure::usage(format!("--gossip {text:?} is no address: give ip:port, such as 10.0.0.7:7480"))
    })
}

fn with_listen(mut target: Target, gossip: Option<String>) -> Result<Target, Failure> {
    let Some(text) = gossip else { return Ok(target) };
    let at = gossip_at(&text)?;
    target.listen = Some(Listen { at, advertise: at });
    Ok(target)
}

/// SIGHUP has the node look at its source.
async fn refresh_on_signal(mut hangup: Signal, node: Handle) {
    while hangup.recv().await.is_some() {
        node.refresh();
    }
}
