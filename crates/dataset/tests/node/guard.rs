//! Versions that lost their keys: whole in the cluster, and held.

use super::test_cluster::{TestCluster, dataset, until, version};
use std::fs;

const HELD: &str = "partage_dataset_state{dataset=\"names\",version=\"v2\",state=\"held\"}";

impl TestCluster {
    /// A version of which so many files hold one key each, and the others nothing.
    fn write_little(&self, name: &str, files: usize) {
        self.write("_little");
        let folder = self.source().join("names/_little");
        for (number, file) in fs::read_dir(&folder).unwrap().enumerate() {
            let path = file.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let kept = text.lines().next().filter(|_| number < files).map(|line| format!("{line}\n"));
            fs::write(path, kept.unwrap_or_default()).unwrap();
        }
        fs::rename(folder, self.source().join("names").join(name)).unwrap();
    }

    async fn all_hold(&self, name: &str) {
        for node in self.nodes.keys() {
            until(&format!("{node} holds {name}"), async || {
                self.told(*node, "names", name).await["state"] == "HELD"
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_an_empty_or_shrunken_version_is_held_by_all_nodes_until_a_person_releases_it() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start_many(2, 1).await;
    test_cluster.all_serve("v1").await;
    test_cluster.write_little("v2", 0);
    test_cluster.all_hold("v2").await;
    let held = test_cluster.told(1, "names", "v2").await["held"].as_str().unwrap().to_owned();
    assert!(held.contains("0 keys") && !held.contains("release"), "the reason alone: {held}");
    assert!(test_cluster.metric(1, HELD).await == 1.0);
    test_cluster.all_serve("v1").await;
    test_cluster.write_little("v3", 2);
    test_cluster.all_hold("v3").await;
    test_cluster.all_serve("v1").await;
    // What is sound passes them by.
    test_cluster.write("v4");
    test_cluster.all_serve("v4").await;
    test_cluster.write_little("v5", 3);
    test_cluster.all_hold("v5").await;
    test_cluster.nodes[&2].pin(&dataset(), Some(&version("v5"))).unwrap();
    for node in [1, 2] {
        until("v5 is given", async || test_cluster.told(node, "names", "v5").await["state"] == "ACTIVE")
            .await;
    }
}
