//! The object store of a node of a pool: the URLs and clients of datasets and of backups, waited for no longer than a node may
//! wait.

use crate::dataset::{environment, make_folder};
use crate::output::Failure;
use bytes::Bytes;
use partage_dataset::source::{Source, SourceError, SourceErrorKind, SourceRetryPolicy};
use partage_shuffle::objects::{OBJECT_TIME, ObjectError, ObjectPlace};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// What is tried again within one call: a connection that breaks. All else the node tries again, later.
const POLICY: SourceRetryPolicy = SourceRetryPolicy {
    connect_time: Duration::from_secs(5),
    answer_time: Duration::from_secs(10),
    retries: 2,
    retry_time: Duration::from_secs(10),
};

/// Calls that are under way. One to a folder that does not answer goes on when it is given up, and has a thread: no more than so
/// many have one.
const CALLS: usize = 32;

/// A store that is open. The threads of the node that call it are none of the runtime.
#[derive(Debug)]
pub struct Objects {
    source: Source,
    runtime: Handle,
    calls: Arc<Semaphore>,
    stops: watch::Sender<bool>,
    /// What one call may take.
    within: Duration,
}

impl Objects {
    /// Opens the store of that URL. Only a folder is looked at: it is made if it is not there.
    pub fn open(url: &str) -> Result<Arc<dyn ObjectPlace>, Failure> {
        make_folder(url)?;
        let source = Source::open_objects_with_policy(url, &environment(), &POLICY);
        let source = source.map_err(|error| Failure::usage(format!("--object-store: {error}")))?;
        Ok(Arc::new(Objects::of(source, OBJECT_TIME)))
    }

    fn of(source: Source, within: Duration) -> Objects {
        let (calls, stops) = (Arc::new(Semaphore::new(CALLS)), watch::Sender::new(false));
        Objects { source, runtime: Handle::current(), calls, stops, within }
    }

    fn call<T, W>(&self, path: &str, work: impl FnOnce(Source, String) -> W) -> Result<T, ObjectError>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, SourceError>> + Send + 'static,
    {
        let work = work(self.source.clone(), path.to_owned());
        let called = async {
            let permit = Arc::clone(&self.calls).acquire_owned().await;
            // It keeps its permit until it has ended, also when its caller has given it up.
            let task = self.runtime.spawn(async move {
                let _permit = permit;
                work.await
            });
            task.await
        };
        let passes = |why: String| ObjectError { is_lost: false, why };
        let mut stops = self.stops.subscribe();
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                _ = stops.wait_for(|stops| *stops) => Err(passes("the node ends".to_owned())),
                done = timeout(self.within, called) => match done {
                    Ok(Ok(done)) => done.map_err(failed),
                    Ok(Err(ended)) => Err(passes(ended.to_string())),
                    Err(_) => {
                        let (url, within) = (self.source.url(), self.within.as_secs_f64());
                        Err(passes(format!("{url}: no answer within {within} s")))
                    }
                },
            }
        })
    }
}

fn failed(error: SourceError) -> ObjectError {
    // A transfer that broke off says nothing of what is there.
    let is_lost = matches!(error.kind, SourceErrorKind::NotThere | SourceErrorKind::TooLong { .. });
    ObjectError { is_lost, why: error.to_string() }
}

impl ObjectPlace for Objects {
    fn url(&self) -> &str {
        self.source.url()
    }

    fn put(&self, path: &str, bytes: Bytes) -> Result<(), ObjectError> {
        self.call(path, |source, path| async move { source.put_object(&path, bytes).await })
    }

    fn get(&self, path: &str, from: u64, bytes: u64) -> Result<Bytes, ObjectError> {
        self.call(path, move |source, path| async move { source.get_object_range(&path, from, bytes).await })
    }

    fn get_all(&self, path: &str, most: u64) -> Result<Bytes, ObjectError> {
        self.call(path, move |source, path| async move { source.get_object(&path, most).await })
    }

    fn list(&self, path: &str) -> Result<Vec<String>, ObjectError> {
        let listed = self.call(path, |source, path| async move { source.list_objects(&path).await });
        let objects = listed?;
        Ok(objects.into_iter().map(|object| object.path).collect())
    }

    fn folders(&self, path: &str) -> Result<Vec<String>, ObjectError> {
        self.call(path, |source, path| async move { source.list_folders(&path).await })
    }

    fn delete(&self, path: &str) -> Result<(), ObjectError> {
        self.call(path, |source, path| async move { source.delete_object(&path).await })
    }

    fn stop(&self) {
        self.stops.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a thread of its own, as a node calls it.
    fn asked<T: Send + 'static>(
        store: &Arc<dyn ObjectPlace>,
        what: impl FnOnce(&dyn ObjectPlace) -> T + Send + 'static,
    ) -> T {
        let store = Arc::clone(store);
        std::thread::spawn(move || what(store.as_ref())).join().unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn objects_are_put_read_by_ranges_and_deleted_until_the_node_ends() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("made");
        let store = Objects::open(root.to_str().unwrap()).unwrap();
        asked(&store, |store| store.put("a/b/1", "0123456789".into())).unwrap();
        asked(&store, |store| store.put("a/c/2", "x".into())).unwrap();
        assert_eq!(asked(&store, |store| store.get("a/b/1", 3, 4)).unwrap(), "3456");
        assert_eq!(asked(&store, |store| store.list("a/b")).unwrap(), ["a/b/1"]);
        let mut folders = asked(&store, |store| store.folders("a")).unwrap();
        folders.sort();
        assert_eq!(folders, ["b", "c"]);
        assert_eq!(asked(&store, |store| store.folders("none")).unwrap(), [""; 0]);
        let lost = asked(&store, |store| store.get("a/b/none", 0, 1)).unwrap_err();
        assert!(lost.is_lost && lost.why.contains("a/b/none"), "{lost}");
        asked(&store, |store| store.delete("a/b/1")).unwrap();
        asked(&store, |store| store.delete("a/b/1")).unwrap();
        assert!(!root.join("a/b").exists() && root.join("a/c").exists(), "no empty folder is left");
        store.stop();
        let ends = asked(&store, |store| store.get("a/c/2", 0, 1)).unwrap_err();
        assert!(!ends.is_lost && ends.why.contains("ends"), "{ends}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn r3_a_store_that_takes_connections_and_never_answers_is_given_up_in_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("s3://bucket/prefix?endpoint=http://{address}&region=us-east-1&anonymous=true");
        let source = Source::open_objects_with_policy(&url, &Default::default(), &POLICY).unwrap();
        let store: Arc<dyn ObjectPlace> = Arc::new(Objects::of(source, Duration::from_millis(500)));
        for _ in 0..2 {
            let hung = [
                asked(&store, |store| store.get("a", 0, 1)).unwrap_err(),
                asked(&store, |store| store.get_all("a", 9)).unwrap_err(),
                asked(&store, |store| store.put("a", "x".into())).unwrap_err(),
                asked(&store, |store| store.list("a").map(drop)).unwrap_err(),
                asked(&store, |store| store.delete("a")).unwrap_err(),
            ];
            for hung in hung {
                assert!(!hung.is_lost && hung.why.contains("no answer within 0.5 s"), "{hung}");
            }
        }
        drop(listener);
    }

    #[tokio::test]
    async fn a_url_of_no_store_is_refused_with_the_flag() {
        let refused = Objects::open("nothing://here").map(drop).unwrap_err();
        assert!(refused.to_string().contains("--object-store"), "{refused}");
        assert!(Objects::open("s3:/bucket").is_err());
    }
}
