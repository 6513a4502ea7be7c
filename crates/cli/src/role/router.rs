//! `partage router`: an HTTP reverse proxy that knows which node has a key.

use super::{asked_to_stop, log};
use crate::output::{Failure, Output};
use clap::Args;
use partage_router::proxy::{self, KeyFrom, KeyspaceFrom, Rule};
use partage_router::{Options, Router};
use std::net::SocketAddr;
use std::path::PathBuf;

/// `partage router`
#[derive(Debug, Args)]
pub struct RouterArgs {
    /// host:port to listen on
    #[arg(long, env = "PARTAGE_LISTEN", default_value = "127.0.0.1:7440")]
    listen: SocketAddr,
    /// Coordinators, host:port
    #[arg(long, value_delimiter = ',', env = "PARTAGE_COORDINATORS", default_value = "127.0.0.1:7400")]
    join: Vec<String>,
    /// Where the last maps are kept, to start from when no coordinator can be reached
    #[arg(long)]
    maps: Option<PathBuf>,
    /// Requests are all for this keyspace; without it, the first path segment names it
    #[arg(long)]
    keyspace: Option<String>,
    /// The key is in this header
    #[arg(long, conflicts_with_all = ["key_query", "key_segment"])]
    key_header: Option<String>,
    /// The key is this query parameter
    #[arg(long, conflicts_with = "key_segment")]
    key_query: Option<String>,
    /// The key is the path segment of this number, from 1; without any of these, it is the rest of the path
    #[arg(long)]
    key_segment: Option<usize>,
    /// Logs as JSON
    #[arg(long)]
    log_json: bool,
}

impl RouterArgs {
    /// Runs until it is asked to stop.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        log(self.log_json);
        let rule = self.rule()?;
        let options = Options { maps_file: self.maps, ..Options::default() };
        let router = Router::connect(self.join, options).await;
        let config = proxy::Config { listen: self.listen, rules: vec![rule], ..proxy::Config::default() };
        let proxy = proxy::serve(&router, config).await.map_err(Failure::failed)?;
        if output.is_json() {
            output.json(&serde_json::json!({ "router": proxy.address().to_string() }))?;
        } else {
            output.text(&format!("router at http://{}", proxy.address()));
        }
        output.flush();
        asked_to_stop().await?;
        proxy.stop().await;
        Ok(())
    }
}

impl RouterArgs {
    fn rule(&self) -> Result<Rule, Failure> {
        let keyspace = match &self.keyspace {
            Some(name) => {
                KeyspaceFrom::Name(name.parse().map_err(|error| Failure::usage(format!("{error}")))?)
            }
            None => KeyspaceFrom::PathSegment(1),
        };
        let key = match (&self.key_header, &self.key_query, self.key_segment) {
            (Some(name), _, _) => {
                let bad =
                    |_| Failure::usage(format!("{name:?} is no name of a header: use letters, digits and -"));
                KeyFrom::Header(name.parse().map_err(bad)?)
            }
            (None, Some(name), _) => KeyFrom::Query(name.clone()),
            (None, None, Some(0)) => return Err(Failure::usage("path segments are counted from 1")),
            (None, None, Some(segment)) => KeyFrom::PathSegment(segment),
            (None, None, None) => KeyFrom::Rest,
        };
        Ok(Rule { keyspace, key, ..Rule::default() })
    }
}
