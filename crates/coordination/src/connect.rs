//! From a [`Target`] to the backend behind it.

use std::sync::Arc;

use crate::contract::Coordination;
use crate::error::{Error, Result};
use crate::target::{Backend, Target};

/// Connects. Fails at once, naming the target, when it cannot be reached or refuses us; a caller that wants to wait
/// tries again.
///
/// A backend whose feature this program was built without is refused by name.
pub async fn connect(target: &Target) -> Result<Arc<dyn Coordination>> {
    match target.backend {
        Backend::Embedded => {
            Err(Error::Invalid { what: "the embedded backend is opened by its directory".to_owned() })
        }
        #[cfg(feature = "mysql")]
        Backend::MySql => Ok(crate::mysql::MySql::connect(target).await?),
        #[cfg(feature = "etcd")]
        Backend::Etcd => Ok(crate::etcd::Etcd::connect(target).await?),
        #[cfg(feature = "zookeeper")]
        Backend::ZooKeeper => Ok(crate::zookeeper::ZooKeeper::open(target).await?),
        #[cfg(feature = "gossip")]
        Backend::Gossip => Ok(crate::gossip::Gossip::join(target).await?),
        #[allow(unreachable_patterns, reason = "a build with all backends has none left")]
        backend => Err(Error::Invalid {
            what: format!(
                "this program was built without the {backend} backend: build it with `--features {backend}`"
            ),
        }),
    }
}
