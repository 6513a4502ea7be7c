//! Tables on real processes, killed, paused and without a coordinator, while clients write and read.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::admin::leader;
use chaos::cluster::Cluster;
use chaos::http::Http;
use chaos::load::Load;
use chaos::until;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokio::sync::watch;

const NODES: [&str; 3] = ["t1", "t2", "t3"];

/// A table `stock` on three nodes.
async fn cluster() -> Cluster {
    let mut cluster = Cluster::start(0).await;
    for node in NODES {
        cluster.add_table_node(node).await;
    }
    cluster.admin.table("stock").await;
    cluster
}

async fn leads(cluster: &Cluster, node: &str) -> usize {
    let shards = cluster.admin.shards("stock").await;
    shards.iter().filter(|shard| leader(shard) == Some(node)).count()
}

/// Waits until a node leads a shard: after a change of leaders the coordinator spreads the leads, and each node gets some.
async fn leads_something(cluster: &Cluster, node: &str) {
    until(&format!("{node} leads something"), || async {
        if leads(cluster, node).await > 0 { Ok(()) } else { Err("it leads nothing".to_owned()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_a_killed_node_costs_a_table_no_acknowledged_write_and_comes_back_with_what_it_has() {
    let mut cluster = cluster().await;
    let load = Load::of_table(&cluster.admin, "stock");
    load.rounds(3).await;
    for node in NODES {
        leads_something(&cluster, node).await;
        cluster.node_mut(node).process.kill();
        load.rounds(3).await;
        cluster.restart_node(node).await;
        cluster.admin.settled().await;
        load.rounds(3).await;
    }
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_a_table_has_everything_after_all_processes_were_killed_at_once() {
    let mut cluster = cluster().await;
    let load = Load::of_table(&cluster.admin, "stock");
    for _ in 0..3 {
        load.rounds(3).await;
        for node in NODES {
            cluster.node_mut(node).process.kill();
        }
        cluster.coordinator().kill();
        cluster.start_coordinator().await;
        cluster.restart_nodes(&NODES).await;
        cluster.admin.settled().await;
        load.rounds(3).await;
    }
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o8_a_table_is_written_and_read_while_no_coordinator_is_there() {
    let mut cluster = cluster().await;
    let load = Load::of_table(&cluster.admin, "stock");
    load.rounds(3).await;
    cluster.coordinator().kill();
    let before = load.account();
    // Longer than any lease lasts.
    load.rounds(75).await;
    let after = load.account();
    assert_eq!((before.failed, before.refused), (after.failed, after.refused), "{after:?}");
    cluster.start_coordinator().await;
    cluster.admin.settled().await;
    load.rounds(3).await;
    load.finish().await;
}

/// Puts a row, and again until a node has done it.
async fn put(http: &Http, addresses: &[String], key: &str) {
    let path = format!("/v1/tables/stock/keys/{key}");
    until(&format!("{key} is put"), || async {
        for address in addresses {
            if let Ok(reply) = http.ask(Method::PUT, address, &path, &[], "1").await
                && reply.status == StatusCode::NO_CONTENT
            {
                return Ok(());
            }
        }
        Err("no node has put it".to_owned())
    })
    .await;
}

/// All keys that a scan through a node finds, page by page; each page is asked for until it comes.
async fn scan(http: &Http, address: &str, limit: usize) -> Vec<String> {
    let (mut keys, mut token) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/tables/stock/rows?keys_only=true&limit={limit}{token}");
        let page: serde_json::Value = until("a page", || async {
            let reply = http.get(address, &path).await?;
            match reply.status {
                StatusCode::OK => serde_json::from_slice(&reply.body).map_err(|error| error.to_string()),
                StatusCode::SERVICE_UNAVAILABLE => Err(reply.text()),
                other => panic!("{other}: {}", reply.text()),
            }
        })
        .await;
        let rows = page["rows"].as_array().unwrap();
        keys.extend(rows.iter().map(|row| row["key"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => token = format!("&token={next}"),
            None => return keys,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_finds_each_row_that_was_there_all_the_time_once_while_leaders_are_killed() {
    let mut cluster = cluster().await;
    let http = Http::default();
    let addresses: Vec<String> = NODES.map(|node| cluster.node(node).address.clone()).into();
    let wanted: BTreeSet<String> = (0..150).map(|number| format!("kept-{number:03}")).collect();
    for key in &wanted {
        put(&http, &addresses, key).await;
    }
    let (end, ended) = watch::channel(false);
    let writer = tokio::spawn({
        let (http, addresses) = (http.clone(), addresses.clone());
        async move {
            let mut number = 0;
            while !*ended.borrow() {
                put(&http, &addresses, &format!("new-{}", number % 60)).await;
                number += 1;
            }
            number
        }
    });
    for killed in ["t2", "t3"] {
        leads_something(&cluster, killed).await;
        let scans = tokio::spawn({
            let (http, address) = (http.clone(), addresses[0].clone());
            async move {
                let mut all = Vec::new();
                for limit in [7, 1_000, 20] {
                    all.push(scan(&http, &address, limit).await);
                }
                all
            }
        });
        cluster.node_mut(killed).process.kill();
        for found in scans.await.unwrap() {
            let kept: Vec<_> = found.iter().filter(|key| key.starts_with("kept")).cloned().collect();
            assert_eq!(kept.len(), wanted.len(), "each once");
            assert_eq!(kept.into_iter().collect::<BTreeSet<_>>(), wanted);
            let each: BTreeSet<_> = found.iter().collect();
            assert_eq!(each.len(), found.len(), "none comes twice");
        }
        cluster.restart_node(killed).await;
        cluster.admin.settled().await;
    }
    end.send(true).unwrap();
    assert!(writer.await.unwrap() > 0, "rows were written meanwhile");
    let other = http.get(&addresses[1], "/v1/tables/none/rows").await.unwrap();
    assert_eq!(other.status, StatusCode::NOT_FOUND, "{}", other.text());
    let bad = http.get(&addresses[1], "/v1/tables/stock/rows?limit=0").await.unwrap();
    assert_eq!(bad.status, StatusCode::BAD_REQUEST, "{}", bad.text());
}

/// A request for several rows through a node that is never killed; its answer has one outcome for each of `count` keys, in order.
async fn several(
    http: &Http,
    address: &str,
    path: &str,
    name: &str,
    body: &Value,
    count: usize,
) -> Vec<Value> {
    let path = format!("/v1/tables/stock/{path}");
    let headers = if name.is_empty() { vec![] } else { vec![("idempotency-key", name)] };
    let reply = http.ask(Method::POST, address, &path, &headers, body.to_string()).await.unwrap();
    let answer: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let rows = answer["rows"].as_array().or(answer["results"].as_array());
    let rows = rows.unwrap_or_else(|| panic!("{}: {}", reply.status, reply.text())).clone();
    assert_eq!(rows.len(), count);
    assert!(
        rows.iter().enumerate().all(|(at, row)| row["key"] == format!("many-{at:03}")),
        "in the order asked"
    );
    let good = rows.iter().filter(|row| matches!(row["outcome"].as_str(), Some("written" | "found"))).count();
    assert_eq!(reply.status.as_u16(), if good == count { 200 } else { 207 }, "{answer}");
    assert_eq!(answer["failed"], count - good);
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_each_row_of_a_multi_put_has_its_own_outcome_while_leaders_are_killed() {
    const ROWS: usize = 100;
    let mut cluster = cluster().await;
    let http = Http::default();
    let address = cluster.node("t1").address.clone();
    let mut round = 0;
    for killed in ["t2", "t3"] {
        leads_something(&cluster, killed).await;
        cluster.node_mut(killed).process.kill();
        for _ in 0..6 {
            round += 1;
            let rows: Vec<Value> = (0..ROWS)
                .map(|at| json!({ "key": format!("many-{at:03}"), "value": round.to_string() }))
                .collect();
            let (body, name) = (json!({ "rows": rows }), format!("round-{round}"));
            until("each row is written", || async {
                let rows = several(&http, &address, "put", &name, &body, ROWS).await;
                let open = rows.iter().filter(|row| row["outcome"] != "written").count();
                if open == 0 { Ok(()) } else { Err(format!("{open} rows are not written")) }
            })
            .await;
            let keys: Vec<String> = (0..ROWS).map(|at| format!("many-{at:03}")).collect();
            until("each row is read", || async {
                let rows = several(&http, &address, "get", "", &json!({ "keys": keys }), ROWS).await;
                let found: Vec<&Value> = rows.iter().filter(|row| row["outcome"] == "found").collect();
                let wanted = Value::from(round.to_string());
                assert!(found.iter().all(|row| row["value"] == wanted), "what was written last");
                if found.len() == ROWS { Ok(()) } else { Err(format!("{} rows are found", found.len())) }
            })
            .await;
        }
        cluster.restart_node(killed).await;
        cluster.admin.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d3_a_node_that_sleeps_and_wakes_answers_nothing_that_is_out_of_date() {
    let cluster = cluster().await;
    let load = Load::of_table(&cluster.admin, "stock");
    load.rounds(3).await;
    for node in NODES {
        cluster.node(node).process.pause();
        cluster.admin.is_seen_as(node, &["down"]).await;
        load.rounds(3).await;
        cluster.node(node).process.wake();
        cluster.admin.is_seen_as(node, &["up"]).await;
        cluster.admin.settled().await;
        load.rounds(3).await;
    }
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_sent_on_to_a_node_that_then_sleeps_has_an_answer() {
    const ROWS: usize = 60;
    let cluster = cluster().await;
    let http = Http::default();
    let awake = [cluster.node("t1").address.clone()];
    for number in 0..ROWS {
        put(&http, &awake, &format!("asleep-{number}")).await;
    }
    leads_something(&cluster, "t2").await;
    cluster.node("t2").process.pause();
    // Of these some are sent on to t2 before any node knows that it sleeps. Its connections stay open.
    let asked = (0..ROWS).map(|number| {
        let (http, address) = (http.clone(), awake[0].clone());
        tokio::spawn(async move {
            let path = format!("/v1/tables/stock/keys/asleep-{number}");
            (
                http.ask(Method::PUT, &address, &path, &[], "2").await,
                http.ask(Method::GET, &address, &path, &[], "").await,
            )
        })
    });
    for answers in asked.collect::<Vec<_>>() {
        let (written, read) = answers.await.unwrap();
        for answer in [written.unwrap(), read.unwrap()] {
            let is_definite = matches!(
                answer.status,
                StatusCode::OK
                    | StatusCode::NO_CONTENT
                    | StatusCode::BAD_GATEWAY
                    | StatusCode::GATEWAY_TIMEOUT
                    | StatusCode::SERVICE_UNAVAILABLE
            );
            assert!(is_definite, "{}: {}", answer.status, answer.text());
        }
    }
    for number in 0..ROWS {
        put(&http, &awake, &format!("asleep-{number}")).await;
    }
    cluster.node("t2").process.wake();
    cluster.admin.settled().await;
}
