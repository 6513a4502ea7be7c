//! Nodes of shuffles, as commands ask them, and what their errors mean.
//!
//! | what went wrong | the command reports | exit code |
//! |---|---|---|
//! | no node is reachable | not reachable | 3 |
//! | a node does not answer, or its connection ends, until the retry budget is used up | not reachable | 3 |
//! | a node refuses | refused, with the word of the node | 4 |
//! | anything else | failed | 1 |

use crate::http::first_answer;
use crate::output::Failure;
use bytes::Bytes;
use clap::Args;
use hyper::{HeaderMap, Method, StatusCode};
use partage_shuffle_client::{Address, Client, Error, RefusalWord, Settings, ShuffleId, shuffle_id};
use partage_wire::json::ErrorBody;
use serde_json::Value;
use std::fmt;

/// Who is asked unless somebody says: the nodes of `partage up`, of which the first one is also where `partage shuffle serve`
/// listens.
pub const NODES: [&str; 3] = ["127.0.0.1:7700", "127.0.0.1:7701", "127.0.0.1:7702"];

const START: &str = "start one with `partage shuffle serve` or `partage up`, or name it with --node ADDRESS";

/// Which nodes are asked.
#[derive(Debug, Clone, Args)]
pub struct ShuffleNodes {
    /// Nodes of shuffles, as host:port or unix:PATH; given several times, or separated by commas: the command asks the first one
    /// that answers, and another one when that dies
    #[arg(
        long,
        env = "PARTAGE_SHUFFLE_NODE",
        value_delimiter = ',',
        default_values = NODES,
        value_name = "ADDRESS"
    )]
    node: Vec<Address>,
}

impl ShuffleNodes {
    /// Those that can be asked over HTTP: they listen on a port.
    pub fn with_ports(&self) -> Vec<String> {
        let port = |node: &Address| match node {
            Address::Tcp(at) => Some(at.clone()),
            Address::Unix(_) => None,
        };
        self.node.iter().filter_map(port).collect()
    }

    /// What is at that path, of the first node that answers over HTTP.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        let nodes = self.with_ports();
        if nodes.is_empty() {
            return Err(Failure::usage("no node is named that can be asked over HTTP")
                .help("give --node HOST:PORT: nodes speak HTTP on ports, and not on Unix sockets"));
        }
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        let answer = first_answer(&nodes, &Method::GET, path, &headers, &body);
        let reply = answer.await.map_err(|error| {
            let asked = nodes.join(", ");
            Failure::not_reachable(format!("no node of shuffles answers at {asked}: {}", error.why))
                .help(START)
        })?;
        if reply.status != StatusCode::OK {
            return Err(match serde_json::from_slice::<ErrorBody>(&reply.body) {
                Ok(ErrorBody { error }) => Failure::refused(error.message).kind(error.kind).help(error.help),
                Err(_) => {
                    let said = String::from_utf8_lossy(&reply.body);
                    Failure::failed(format!("{}: {said}", reply.status))
                }
            });
        }
        serde_json::from_slice(&reply.body)
            .map_err(|error| Failure::failed(format!("the answer of the node is not understood: {error}")))
    }

    /// A client of these nodes.
    pub async fn connect(&self) -> Result<Client, Failure> {
        Client::connect(self.node.clone(), Settings::default()).await.map_err(failure)
    }
}

/// The number of a shuffle, from that or from its handle.
pub fn shuffle(text: &str) -> Result<ShuffleId, String> {
    shuffle_id(text).map_err(|error| error.to_string())
}

/// A failure of the command's own code, on its way through the client.
#[derive(Debug)]
struct OwnFailure(Failure);

impl fmt::Display for OwnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.what())
    }
}

impl std::error::Error for OwnFailure {}

/// A failure of the command's own code, which the client hands back.
pub fn own(failure: Failure) -> Error {
    Error::own(OwnFailure(failure))
}

/// What an error of the client means.
pub fn failure(error: Error) -> Failure {
    match &error {
        Error::Own(inner) => match inner.downcast_ref::<OwnFailure>() {
            Some(OwnFailure(failure)) => failure.clone(),
            None => Failure::failed(&error),
        },
        Error::NoNode(_) | Error::NoAddress => Failure::not_reachable(&error).help(START),
        Error::Refused { refusal, .. } => {
            let failure = Failure::refused(&error).kind(refusal.word);
            match help(refusal.word) {
                Some(help) => failure.help(help),
                None => failure,
            }
        }
        Error::Lost { .. } | Error::Late { .. } => Failure::not_reachable(&error)
            .help("look at the log of the node, or name other ones with --node ADDRESS"),
        Error::Differs { .. } => {
            Failure::failed(&error).help("read it again, and report this if it stays so")
        }
        Error::BadOptions(_) => Failure::usage(&error),
        Error::TooLarge { .. } => Failure::refused(&error).help("make keys or records smaller"),
        Error::Unexpected { .. }
        | Error::NoRecords(_)
        | Error::CombinesNothing
        | Error::NoNumber { .. }
        | Error::TotalTooLarge { .. } => Failure::failed(&error),
    }
}

/// The way out, where the node's own sentence does not say it.
fn help(word: RefusalWord) -> Option<&'static str> {
    match word {
        RefusalWord::ShuffleUnknown => Some("`partage shuffle list` lists the shuffles"),
        RefusalWord::NotSealed => Some("seal it with `partage shuffle seal`"),
        RefusalWord::Busy | RefusalWord::TooManyConnections => Some("try again later"),
        RefusalWord::TooFewNodes => {
            Some("start more nodes with `partage shuffle serve`; `partage node list` says which are there")
        }
        RefusalWord::QuotaUsedUp => {
            Some("delete some of those that `partage shuffle list --owner NAME` lists, or let them end")
        }
        RefusalWord::StoresOnly => {
            Some("name nodes that buffer with --node; `partage node show NODE` lists the labels of one")
        }
        RefusalWord::DiskFull => Some("delete shuffles, or give the nodes more room"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_shuffle_client::{Again, Refusal};

    #[test]
    fn errors_of_the_client_are_failures_with_a_way_out() {
        let none = failure(Error::NoNode("127.0.0.1:9: refused".to_owned()));
        assert!(none.is_not_reachable() && none.to_string().contains("partage shuffle serve"), "{none}");
        let refusal = Refusal::new(RefusalWord::ShuffleUnknown, Again::No, "there is none");
        let refused = failure(Error::Refused { node: NODES[0].parse().unwrap(), refusal });
        assert!(
            refused.is_kind("shuffle-unknown") && refused.to_string().contains("shuffle list"),
            "{refused}"
        );
        let mine = Failure::usage("row 7 has no number").help("mend it");
        assert_eq!(failure(own(mine.clone())), mine);
    }
}
