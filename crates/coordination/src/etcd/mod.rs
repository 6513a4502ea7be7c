//! The etcd backend: several coordinators on an etcd that runs already, 3.4 or later.
//!
//! Every change in etcd has a number (its *revision*), and that is our version. The rest is translation:
//!
//! | the contract        | etcd                                                                      | file         |
//! |---------------------|---------------------------------------------------------------------------|--------------|
//! | key below a root    | key with a prefix                                                         | `space`      |
//! | transaction         | txn with comparisons; on no it reads the reason                           | `checks`     |
//! | session             | lease, marked as ours                                                     | `sessions`   |
//! | list                | range reads at one revision                                               | `pages`      |
//! | watch               | watch stream, begun again by itself where it was                          | `watch`      |
//! | definite, unknown   | which server to ask, which next, and what a missing answer means | `servers`, `outcome` |
//! | no room             | an error that may come after a commit: the keys tell                      | `no_space`   |
//!
//! Uses stubs made from the few messages we need, not a client library: the maintained one
//! needs an installed `protoc`, and decides by itself which server to ask and what to retry; here that
//! must be known, as it makes an outcome definite or not.

mod checks;
mod no_space;
mod outcome;
mod pages;
mod proto;
mod servers;
mod sessions;
mod space;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use prost::Message;

use crate::contract::{Coordination, Limits, Listing, Remark, Weight};
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::limits::{ETCD_GUARDED_ATTEMPTS, ETCD_MAX_COMPARES, ETCD_MAX_REQUEST_BYTES, ETCD_MAX_VALUE_BYTES};
use crate::session::{SessionId, check_ttl};
use crate::target::Target;
use crate::transaction::{Entry, Transaction, Version};
use crate::watch::Watch;

use checks::{Check, operation, reading, unchanged_since, version};
use proto::kv_client::KvClient;
use proto::maintenance_client::MaintenanceClient;
use proto::response_op::Response;
use proto::{RangeRequest, RangeResponse, RequestOp, ResponseOp, StatusRequest, TxnRequest, TxnResponse};
use servers::{Kind, ServerChannel, Servers};
use space::Space;

/// How long after its time-to-live a session ends at the latest, by a server with default settings that is
/// up: the least time of a lease, the rounding to seconds, and the rounds in which etcd ends leases.
pub const EXPIRY_BOUND: Duration = Duration::from_secs(5);

/// A root in an etcd.
#[derive(Debug)]
pub struct Etcd {
    servers: Arc<Servers>,
    space: Space,
}

impl Etcd {
    /// Signs in, and looks whether the root can be read. Fails at once, naming the target.
    pub async fn connect(target: &Target) -> Result<Arc<Self>> {
        let space = Space::new(&target.root);
        let servers = Arc::new(Servers::of(target, space.prefix())?);
        servers.sign_in(None).await?;
        let send = |server: ServerChannel| {
            let request = server.request(StatusRequest {});
            async move { MaintenanceClient::new(server.channel).status(request).await }
        };
        let status = servers.call(Kind::Read, send).await?;
        check_version(servers.location(), &status.version)?;
        for alarm in status.errors {
            tracing::warn!(target = %servers.location(), %alarm, "etcd has an alarm");
        }
        let root = space.range(&Scope::All);
        let look = RangeRequest { key: root.start, range_end: root.end, limit: 1, ..RangeRequest::default() };
        pages::range(&servers, look).await?;
        Ok(Arc::new(Self { servers, space }))
    }

    /// Whether a client without credentials can read the root.
    async fn is_open(&self) -> Result<bool> {
        let root = self.space.range(&Scope::All);
        let look = RangeRequest { key: root.start, range_end: root.end, limit: 1, ..RangeRequest::default() };
        let send = |server: ServerChannel| {
            let request = tonic::Request::new(look.clone());
            async move {
                match KvClient::new(server.channel).range(request).await {
                    Ok(_) => Ok(tonic::Response::new(true)),
                    Err(status) if is_a_no(&status) => Ok(tonic::Response::new(false)),
                    Err(status) => Err(status),
                }
            }
        };
        self.servers.call(Kind::Read, send).await
    }

    async fn txn(&self, kind: Kind, request: TxnRequest) -> Result<TxnResponse> {
        let size = request.encoded_len();
        if size > ETCD_MAX_REQUEST_BYTES {
            let what = "a transaction with its checks, in bytes,".to_owned();
            return Err(Error::TooLarge { what, size, limit: ETCD_MAX_REQUEST_BYTES });
        }
        let send = |server: ServerChannel| {
            let request = server.request(request.clone());
            async move { KvClient::new(server.channel).txn(request).await }
        };
        let answer = self.servers.call(kind, send).await?;
        self.servers.learned(answer.header.as_ref());
        Ok(answer)
    }

    /// All checks in the one transaction.
    async fn commit_at_once(&self, checks: &[Check], changes: Vec<RequestOp>) -> Result<Version> {
        let request = TxnRequest {
            compare: checks.iter().map(|check| check.compare(&self.space)).collect(),
            success: self.or_look(changes),
            failure: self.reads(checks, 0),
        };
        let answer = self.txn(Kind::Change, request).await?;
        if answer.succeeded {
            return Ok(at(&answer));
        }
        self.first_that_fails(checks, &answer)?;
        Err(Error::Unavailable {
            what: format!(
                "{} refused a transaction and showed no reason: report it",
                self.servers.location()
            ),
        })
    }

    /// More checks than etcd compares at once: reads all but the conditions beforehand, guarded.
    async fn commit_guarded(&self, checks: &[Check], changes: Vec<RequestOp>) -> Result<Version> {
        let (conditions, others): (Vec<Check>, Vec<Check>) =
            checks.iter().cloned().partition(Check::is_condition);
        for _ in 0..ETCD_GUARDED_ATTEMPTS {
            let mut revision = 0;
            for some in others.chunks(ETCD_MAX_COMPARES) {
                let reads = TxnRequest { success: self.reads(some, revision), ..TxnRequest::default() };
                let answer = self.txn(Kind::Read, reads).await?;
                if revision == 0 {
                    revision = answer.header.map(|header| header.revision).unwrap_or_default();
                }
                self.first_that_fails(some, &answer)?;
            }
            let mut compare: Vec<_> = conditions.iter().map(|check| check.compare(&self.space)).collect();
            compare.push(unchanged_since(revision, &self.space.range(&Scope::All)));
            let failure = self.reads(&conditions, 0);
            let request = TxnRequest { compare, success: changes.clone(), failure };
            let answer = self.txn(Kind::Change, request).await?;
            if answer.succeeded {
                return Ok(at(&answer));
            }
            self.first_that_fails(&conditions, &answer)?;
        }
        Err(Error::Unavailable {
            what: format!(
                "{}: others wrote during each of {ETCD_GUARDED_ATTEMPTS} attempts of a transaction over many \
                 folders: put fewer keys in one",
                self.servers.location()
            ),
        })
    }

    /// A transaction without changes needs a read, else etcd answers it from one server's memory.
    fn or_look(&self, changes: Vec<RequestOp>) -> Vec<RequestOp> {
        if !changes.is_empty() {
            return changes;
        }
        let root = self.space.range(&Scope::All);
        let look = RangeRequest { key: root.start, limit: 1, keys_only: true, ..RangeRequest::default() };
        vec![reading(look)]
    }

    fn reads(&self, checks: &[Check], revision: i64) -> Vec<RequestOp> {
        checks.iter().map(|check| reading(RangeRequest { revision, ..check.read(&self.space) })).collect()
    }

    fn first_that_fails(&self, checks: &[Check], answer: &TxnResponse) -> Result<()> {
        checks.iter().zip(&answer.responses).try_for_each(|(check, found)| {
            let nothing = RangeResponse::default();
            let ResponseOp { response } = found;
            let found = match response {
                Some(Response::ResponseRange(found)) => found,
                _ => &nothing,
            };
            check.verdict(found, &self.space)
        })
    }
}

fn at(answer: &TxnResponse) -> Version {
    version(answer.header.map(|header| header.revision).unwrap_or_default())
}

fn check_version(location: &str, found: &str) -> Result<()> {
    let mut numbers = found.split('.').map(|number| number.parse::<u32>().unwrap_or_default());
    if (numbers.next(), numbers.next()) >= (Some(3), Some(4)) {
        return Ok(());
    }
    Err(Error::Invalid { what: format!("{location} is etcd {found:?}: 3.4 or later is needed") })
}

/// Whether etcd refuses a client without credentials.
fn is_a_no(status: &tonic::Status) -> bool {
    use tonic::Code;
    // "user name is empty" and "permission denied" are etcd's words for it.
    matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied)
        || (status.code() == Code::InvalidArgument && status.message().contains("user name is empty"))
}

#[async_trait]
impl Coordination for Etcd {
    fn backend(&self) -> &'static str {
        "etcd"
    }

    fn limits(&self) -> Limits {
        Limits { max_value_bytes: ETCD_MAX_VALUE_BYTES, max_transaction_bytes: ETCD_MAX_VALUE_BYTES }
    }

    async fn open_session(&self, ttl: Duration) -> Result<SessionId> {
        check_ttl(ttl)?;
        sessions::open(&self.servers, &self.space, ttl).await
    }

    async fn renew_session(&self, session: SessionId) -> Result<()> {
        sessions::renew(&self.servers, &self.space, session).await
    }

    async fn end_session(&self, session: SessionId) -> Result<()> {
        sessions::end(&self.servers, &self.space, session).await
    }

    async fn read(&self, key: &Key) -> Result<Option<Entry>> {
        let request = RangeRequest { key: self.space.raw(key), ..RangeRequest::default() };
        let found = pages::range(&self.servers, request).await?;
        Ok(found.kvs.first().map(pages::entry))
    }

    async fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Result<Listing> {
        pages::page(&self.servers, &self.space, scope, after, limit).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Version> {
        transaction.check(&self.limits())?;
        let checks = Check::all(&transaction, &self.space)?;
        let changes: Vec<_> =
            transaction.operations.iter().map(|change| operation(change, &self.space)).collect();
        let seen = no_space::seen(&self.servers, &transaction.conditions);
        let committed = if checks.len() <= ETCD_MAX_COMPARES {
            self.commit_at_once(&checks, changes).await
        } else {
            self.commit_guarded(&checks, changes).await
        };
        if let Err(Error::NoRoom { .. }) = committed
            && let Some(revision) = no_space::done_at(&self.servers, &self.space, &transaction, seen).await?
        {
            return Ok(version(revision));
        }
        committed.map_err(|error| match checks.iter().find_map(Check::session) {
            Some(session) if outcome::is_lease_gone(&error) => Error::SessionEnded { session },
            _ => error,
        })
    }

    async fn remarks(&self) -> Result<Vec<Remark>> {
        let mut remarks = Vec::new();
        if self.is_open().await? {
            let what = "etcd lets anybody read the root who reaches it: turn its authentication on, and give the root \
                        to one user (`etcdctl auth enable`)";
            remarks.push(Remark::new(Weight::Risky, what));
        }
        Ok(remarks)
    }

    async fn watch(&self, scope: Scope, from: Option<Version>) -> Result<Watch> {
        Ok(watch::start(Arc::clone(&self.servers), self.space.clone(), scope, from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_etcd_is_refused_by_its_version() {
        for (found, good) in [
            ("3.4.23", true),
            ("3.4.0-rc.1", true),
            ("3.10.0", true),
            ("4.0.0", true),
            ("3.3.27", false),
            ("", false),
        ] {
            assert_eq!(check_version("etcd://h/r", found).is_ok(), good, "{found:?}");
        }
    }
}
