//! Snapshots of shards over HTTP.

use crate::cluster::{Cluster, Rows, ask, bytes, coded, noise};

#[test]
fn a_snapshot_of_a_shard_stays_as_it_is_while_rows_are_written() {
    let cluster = Cluster::start(1);
    cluster.create(&["stock", "--replicas", "1", "--shards", "1"]);
    let rows: Rows = (0..120_u64).map(|n| (n.to_be_bytes().to_vec(), noise(n, 40))).collect();
    rows.iter().for_each(|(key, value)| cluster.put("stock", key, "", value));
    let shard = cluster.shards("stock")[0]["shard"].as_u64().unwrap();
    let (node, path) = (&cluster.nodes[0].address, format!("/v1/tables/stock/shards/{shard}/snapshots"));
    let made = ask(node, "POST", &path, &[], &[]).unwrap();
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.json()["snapshot"].as_str().unwrap().to_owned();
    (0..60_u64).for_each(|n| cluster.put("stock", &n.to_be_bytes(), "", b"later"));
    cluster.delete("stock", &100_u64.to_be_bytes());

    let (mut found, mut from) = (Rows::new(), String::new());
    loop {
        let page = ask(node, "GET", &format!("{path}/{id}/rows?limit=50{from}"), &[], &[]).unwrap().json();
        for row in page["rows"].as_array().unwrap() {
            assert!(found.insert(bytes(&row["key"]), bytes(&row["value"])).is_none());
        }
        match page.get("next") {
            Some(next) => from = format!("&from={}", coded(&bytes(next))),
            None => break,
        }
    }
    assert!(found == rows);
    let chunk = ask(node, "GET", &format!("{path}/{id}/chunk"), &[], &[]).unwrap();
    let (tag, count) = (chunk.header("etag").unwrap(), chunk.header("partage-rows"));
    assert_eq!((chunk.status, count, chunk.header("partage-next")), (200, Some("120"), None));
    let known =
        ask(node, "GET", &format!("{path}/{id}/chunk?from="), &[("if-none-match", tag)], &[]).unwrap();
    assert_eq!((known.status, known.body.len(), known.header("etag")), (304, 0, Some(tag)));
    let bad = ask(node, "GET", &format!("{path}/{id}/rows?token=x"), &[], &[]).unwrap();
    assert_eq!(bad.status, 400);

    assert_eq!(ask(node, "DELETE", &format!("{path}/{id}"), &[], &[]).unwrap().status, 204);
    let gone = ask(node, "GET", &format!("{path}/{id}/rows"), &[], &[]).unwrap();
    assert_eq!((gone.status, gone.json()["error"]["kind"].as_str()), (410, Some("gone")));
    let elsewhere = ask(node, "POST", "/v1/tables/stock/shards/99/snapshots", &[], &[]).unwrap();
    assert_eq!(elsewhere.status, 421);
    // A node keeps few of them.
    let statuses: Vec<u16> = (0..9).map(|_| ask(node, "POST", &path, &[], &[]).unwrap().status).collect();
    assert_eq!(statuses, [201, 201, 201, 201, 201, 201, 201, 201, 503]);
}
