//! The rows of a table over HTTP: many put at once, all scanned, and those of a table that nobody writes compared.

use crate::cluster::Cluster;
use crate::http::Http;
use crate::until;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

/// Rows that one request puts: as many as one may.
const AT_ONCE: usize = 1_000;

/// A table that no client writes while others are ill-treated.
const QUIET: &str = "quiet";

/// The rows in it.
const QUIET_ROWS: usize = 300;

/// Puts rows `row-0`, `row-1` and so on, so many, through the node at `address`; each request again until all of its rows are
/// written.
pub async fn load(http: &Http, address: &str, table: &str, rows: usize) {
    let path = format!("/v1/tables/{table}/put");
    for first in (0..rows).step_by(AT_ONCE) {
        let row = |number: usize| json!({ "key": format!("row-{number}"), "value": number.to_string() });
        let rows: Vec<Value> = (first..rows.min(first + AT_ONCE)).map(row).collect();
        let (name, body) = (format!("load-{first}"), json!({ "rows": rows }).to_string());
        until("rows are put", || async {
            let headers = [("idempotency-key", name.as_str())];
            let reply = http.ask(Method::POST, address, &path, &headers, body.clone()).await?;
            if reply.status == StatusCode::OK { Ok(()) } else { Err(reply.text()) }
        })
        .await;
    }
}

/// Shows each row that a scan through the node at `address` finds, page by page; each page is asked for until it comes. `query`
/// is what follows the question mark.
pub async fn scan(http: &Http, address: &str, table: &str, query: &str, mut see: impl FnMut(&Value)) {
    let mut token = String::new();
    loop {
        let path = format!("/v1/tables/{table}/rows?{query}{token}");
        let page: Value = until("a page", || async {
            let reply = http.get(address, &path).await?;
            match reply.status {
                StatusCode::OK => serde_json::from_slice(&reply.body).map_err(|error| error.to_string()),
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY => Err(reply.text()),
                other => panic!("{other}: {}", reply.text()),
            }
        })
        .await;
        page["rows"].as_array().unwrap().iter().for_each(&mut see);
        match page["next"].as_str() {
            Some(next) => token = format!("&token={next}"),
            None => return,
        }
    }
}

/// D9: a second table beside the one that is ill-treated, and its rows as they were at first.
#[derive(Debug)]
pub struct Quiet {
    before: Vec<Value>,
}

impl Quiet {
    /// Creates the table and puts its rows.
    pub async fn start(cluster: &Cluster) -> Quiet {
        cluster.admin.table(QUIET).await;
        let (http, address) = (Http::default(), any(cluster));
        load(&http, &address, QUIET, QUIET_ROWS).await;
        let before = all(&http, &address).await;
        assert_eq!(before.len(), QUIET_ROWS);
        Quiet { before }
    }

    /// Each node finds the same rows, with the same values and versions.
    pub async fn is_unchanged(&self, cluster: &Cluster) {
        for (node, address) in cluster.addresses() {
            let now = all(&Http::default(), &address).await;
            assert!(
                now == self.before,
                "D9: {node} finds other rows than before: {now:?}, {:?}",
                self.before
            );
        }
    }
}

fn any(cluster: &Cluster) -> String {
    cluster.addresses().into_values().next().unwrap()
}

/// In the order of their keys.
async fn all(http: &Http, address: &str) -> Vec<Value> {
    let mut rows = Vec::new();
    scan(http, address, QUIET, "limit=1000", |row| rows.push(row.clone())).await;
    rows.sort_by_key(|row| row["key"].to_string());
    rows
}
