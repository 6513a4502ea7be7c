//! `partage router`: an HTTP reverse proxy that knows which node has a key.

use super::{StopSignals, log, read};
use crate::door::{DoorArgs, make_state_private};
use crate::output::{Failure, Output};
use clap::Args;
use partage_door::state::make_private;
use partage_router::proxy::{self, KeyFrom, KeyspaceFrom, Rule};
use partage_router::{CallOptions, Options, Router};
use partage_wire::config::{ConfigError, Place, RouterFile, RuleFile};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Where it listens without a flag or key: loopback, as there is no authentication yet.
const LISTEN: &str = "127.0.0.1:7440";

/// The arguments of `partage router`.
#[derive(Debug, Args)]
pub struct RouterArgs {
    /// TOML configuration file; the book lists its keys
    #[arg(long, env = "PARTAGE_CONFIG")]
    config: Option<PathBuf>,
    /// host:port to listen on [default: 127.0.0.1:7440]
    #[arg(long, env = "PARTAGE_LISTEN")]
    listen: Option<String>,
    /// Coordinators to connect to, as host:port separated by commas [default: PARTAGE_COORDINATOR, else 127.0.0.1:7400]
    #[arg(long, visible_alias = "coordinator", value_delimiter = ',', env = "PARTAGE_COORDINATORS")]
    join: Vec<String>,
    /// File where the router keeps the last maps; the router starts from it when it can reach no coordinator
    #[arg(long, env = "PARTAGE_MAPS")]
    maps: Option<PathBuf>,
    #[command(flatten)]
    rule: RuleArgs,
    #[command(flatten)]
    door: DoorArgs,
    /// Write logs as JSON
    #[arg(long)]
    log_json: bool,
}

/// One rule, in place of those of the file.
#[derive(Debug, Args)]
struct RuleArgs {
    /// Keyspace of all requests; without the flag, the first path segment names the keyspace
    #[arg(long, env = "PARTAGE_KEYSPACE")]
    keyspace: Option<String>,
    /// Header that has the key
    #[arg(long, env = "PARTAGE_KEY_HEADER", conflicts_with_all = ["key_query", "key_segment"])]
    key_header: Option<String>,
    /// Query parameter that has the key
    #[arg(long, env = "PARTAGE_KEY_QUERY", conflicts_with = "key_segment")]
    key_query: Option<String>,
    /// Number of the path segment that has the key, from 1; without any --key flag, the key is the rest of the path
    #[arg(long, env = "PARTAGE_KEY_SEGMENT")]
    key_segment: Option<usize>,
}

impl RouterArgs {
    /// Runs until it is asked to stop.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        log(self.log_json, "info");
        let mut signals = StopSignals::listen()?;
        make_state_private();
        let (coordinators, options, config) = self.settled()?;
        if let Some(folder) = options.maps_file.as_deref().and_then(folder_of_maps) {
            make_private(folder);
        }
        let connecting = Router::connect(coordinators, options);
        let Some(router) = signals.unless_asked(connecting).await else { return Ok(()) };
        let proxy = proxy::serve(&router, config).await.map_err(Failure::failed)?;
        if output.is_json() {
            output.json(&serde_json::json!({ "router": proxy.address().to_string() }))?;
        } else {
            output.text(&format!("router at http://{}", proxy.address()));
        }
        output.flush();
        signals.asked_to_stop().await;
        proxy.stop().await;
        Ok(())
    }

    /// Flags and environment over the file, that over the defaults; checked before anything begins.
    fn settled(self) -> Result<(Vec<String>, Options, proxy::Config), Failure> {
        let file: RouterFile = read(self.config.as_deref())?;
        let name = self.config.as_ref().map_or("the settings".to_owned(), |path| path.display().to_string());
        let options = options(&file, &name, self.maps).map_err(Failure::usage)?;
        let listen = self.listen.or(file.listen).unwrap_or_else(|| LISTEN.to_owned());
        let listen: SocketAddr = listen.parse().map_err(|_| {
            Failure::usage(format!(
                "{listen:?} is no address to listen on: give an IP address and a port, such as {LISTEN}"
            ))
        })?;
        let door = self.door.settled(&[listen], file.insecure, &file.door)?;
        let told = self.rule.into_file();
        let (rules, from) =
            if told == RuleFile::default() { (file.rules, name.as_str()) } else { (vec![told], "the flags") };
        let rules: Vec<Rule> =
            rules.iter().map(|it| rule(it, from)).collect::<Result<_, _>>().map_err(Failure::usage)?;
        let rules = if rules.is_empty() { vec![Rule::default()] } else { rules };
        let coordinators = super::coordinators(self.join, file.coordinators);
        Ok((coordinators, options, proxy::Config { listen, rules, threads: file.threads.unwrap_or(0), door }))
    }
}

impl RuleArgs {
    fn into_file(self) -> RuleFile {
        RuleFile {
            keyspace: self.keyspace,
            key_segment: self.key_segment,
            key_header: self.key_header,
            key_query: self.key_query,
            ..RuleFile::default()
        }
    }
}

/// The folder of the file with the maps, if it is for them alone. What else is in a folder, others may be meant to read; the
/// same holds for the folder in which a person has started the router.
fn folder_of_maps(maps: &Path) -> Option<&Path> {
    let folder = maps.parent()?;
    let resolved = folder.canonicalize().ok()?;
    if Path::new(".").canonicalize().is_ok_and(|here| here == resolved) {
        return None;
    }
    let (name, beside) = (maps.file_name()?, maps.with_extension("new"));
    let is_ours = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| {
            entry.file_name() == name || Some(entry.file_name().as_os_str()) == beside.file_name()
        })
    };
    folder.read_dir().ok()?.all(is_ours).then_some(folder)
}

fn options(file: &RouterFile, name: &str, maps: Option<PathBuf>) -> Result<Options, ConfigError> {
    let default = CallOptions::default();
    let call = CallOptions {
        retry: file.retry(name)?,
        budget: file.budget(name)?,
        hedging: file.hedging(name)?,
        zone: file.zone(name)?,
        kept_body_bytes: file.kept_body_bytes.unwrap_or(default.kept_body_bytes),
        in_flight: file.in_flight(name)?.unwrap_or(default.in_flight),
    };
    Ok(Options { keyspaces: file.keyspaces(name)?, maps_file: maps.or_else(|| file.maps.clone()), call })
}

fn rule(rule: &RuleFile, file: &str) -> Result<Rule, ConfigError> {
    let value = |what: String| ConfigError::Value { file: file.to_owned(), what };
    let header = |name: &str| {
        let bad = |_| value(format!("{name:?} is no name of a header: use letters, digits and -"));
        name.parse().map_err(bad)
    };
    let keyspace = match (&rule.keyspace, rule.keyspace_place(file)?) {
        (Some(name), _) => {
            KeyspaceFrom::Name(name.parse().map_err(|error| value(format!("keyspace {name:?}: {error}")))?)
        }
        (None, Some(Place::Segment(at))) => KeyspaceFrom::PathSegment(at),
        (None, Some(Place::Header(name))) => KeyspaceFrom::Header(header(&name)?),
        (None, Some(Place::Query(name))) => KeyspaceFrom::Query(name),
        (None, None) => KeyspaceFrom::PathSegment(1),
    };
    let key = match rule.key_place(file)? {
        Some(Place::Segment(at)) => KeyFrom::PathSegment(at),
        Some(Place::Header(name)) => KeyFrom::Header(header(&name)?),
        Some(Place::Query(name)) => KeyFrom::Query(name),
        None => KeyFrom::Rest,
    };
    Ok(Rule { prefix: rule.prefix.clone(), keyspace, key })
}
