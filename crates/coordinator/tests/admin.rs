//! Administration over HTTP, as `curl` sees it.

mod door;

use door::Door;
use serde_json::json;

#[tokio::test]
async fn the_doors_open() {
    let door = Door::open().await;
    assert_eq!(door.read("/v1/nodes").await, json!({ "nodes": [] }));
    assert_eq!(door.read("/v1/status").await["keyspaces"], 0);
    assert_eq!(door.get("/v1/nothing").await.0, 404);
}
