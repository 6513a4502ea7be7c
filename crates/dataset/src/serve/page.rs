//! The status page for people: no script, nothing from elsewhere, and every text escaped.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Squares that are shown for a version; of more partitions only the counts are.
const SQUARES: u64 = 2_048;

/// After so many seconds the page is shown anew when nothing is being loaded.
const REFRESH_S: u32 = 30;

/// Nodes of which one and the same trouble is shown.
const TROUBLES: usize = 5;

/// The page of all datasets, or of one.
pub fn render(status: &Value, dataset: Option<&str>) -> String {
    let mut page = String::with_capacity(16 << 10);
    let title = dataset.map_or_else(|| "Datasets".to_owned(), |name| format!("Dataset {name}"));
    page += "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">";
    add(
        &mut page,
        format_args!("<title>{}</title><style>{}</style><main>", Escaped(&title), include_str!("page.css")),
    );
    let mut nodes = status["dbs"].as_object().into_iter().flatten().flat_map(|(_, one)| {
        let versions = one["versions"].as_object().into_iter().flatten();
        versions.flat_map(|(_, version)| version["nodes"].as_object().into_iter().flatten())
    });
    // Who watches it need not press a key, and sees what is loaded go on.
    let again_s = if nodes.any(|(_, node)| is_loading(node)) { 2 } else { REFRESH_S };
    add(&mut page, format_args!("<meta http-equiv=\"refresh\" content=\"{again_s}\">"));
    add(&mut page, format_args!("<header><h1>{}</h1>", Escaped(&title)));
    add(
        &mut page,
        format_args!(
            "<span class=\"soft\">as node {} and its peers tell it</span>",
            Escaped(word(status, "node"))
        ),
    );
    if dataset.is_some() {
        page += "<a href=\"/\">all datasets</a>";
    }
    page += "</header>";
    let silent: Vec<&str> = list(&status["unreachable"]).filter_map(Value::as_str).collect();
    if !silent.is_empty() {
        let silent = silent.join(", ");
        add(
            &mut page,
            format_args!(
                "<p class=\"alert\">No word from {}: what only they have is not counted.</p>",
                Escaped(&silent)
            ),
        );
    }
    summary(&mut page, status);
    of_nodes(&mut page, &status["nodes"]);
    let mut is_empty = true;
    for (name, one) in status["dbs"].as_object().into_iter().flatten() {
        is_empty = false;
        of_dataset(&mut page, name, one, &status["nodes"]);
    }
    if is_empty {
        page += "<p>There are no datasets here yet.</p>";
    }
    page += "<footer>The same as JSON: <code>curl -H 'accept: application/json'</code> &middot; \
             <a href=\"/-/metrics\">metrics</a> &middot; <a href=\"/-/health\">health</a></footer></main></html>";
    page
}

/// Writing to a string cannot fail.
fn add(page: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(text);
}

/// Text as it stands in HTML.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '&' => f.write_str("&amp;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            letter => f.write_char(letter),
        })
    }
}

fn word<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// How all stands, in a line.
fn summary(page: &mut String, status: &Value) {
    let of = |value: &Value, name: &str| value[name].as_object().cloned().unwrap_or_default();
    let datasets = of(status, "dbs");
    let versions: Vec<Value> = datasets
        .values()
        .flat_map(|one| of(one, "versions").into_iter().map(|(_, version)| version))
        .collect();
    let served = datasets.values().filter(|one| of(one, "versions").values().any(is_served)).count();
    let in_state = |state: &str| {
        let is_so = |version: &&Value| of(version, "nodes").values().any(|node| node["state"] == state);
        versions.iter().filter(is_so).count()
    };
    add(page, format_args!("<p class=\"soft\">{served} of {} datasets are served", datasets.len()));
    match of(status, "nodes").len() {
        1 => *page += " by 1 node",
        nodes => add(page, format_args!(" by {nodes} nodes")),
    }
    for (state, word, class) in
        [("BUILDING", "being loaded", "soft"), ("HELD", "held", "warn"), ("ERROR", "not loaded", "bad")]
    {
        match in_state(state) {
            0 => {}
            1 => add(page, format_args!(" &middot; <b class=\"{class}\">1 version is {word}</b>")),
            count => {
                add(page, format_args!(" &middot; <b class=\"{class}\">{count} versions are {word}</b>"))
            }
        }
    }
    *page += "</p>";
}

/// What does not work, and at which nodes.
fn of_nodes(page: &mut String, nodes: &Value) {
    let nodes = || nodes.as_object().into_iter().flatten();
    for (what, name) in [
        ("The source cannot be read", "source_error"),
        ("The coordination service is away", "coordination_error"),
        ("The coordinator is away", "coordinator_error"),
    ] {
        let all: Vec<_> = nodes().filter(|(_, node)| node[name].is_object()).collect();
        for (node, told) in all.iter().take(TROUBLES) {
            *page += "<p class=\"alert\">";
            add(page, format_args!("<b>{what}</b> at {}, ", Escaped(node)));
            trouble(page, &told[name]);
            *page += "</p>";
        }
        if all.len() > TROUBLES {
            add(page, format_args!("<p class=\"alert\">And so at {} more nodes.</p>", all.len() - TROUBLES));
        }
    }
    for (node, told) in nodes().filter(|(_, node)| node["store_check"].is_object()).take(TROUBLES) {
        let (read, all) =
            (number(&told["store_check"], "bytes"), number(&told["store_check"], "bytes_in_all"));
        add(
            page,
            format_args!(
                "<p class=\"soft\">{} reads its store through for damage: {} of {}</p>",
                Escaped(node),
                size(read),
                size(all)
            ),
        );
    }
}

fn trouble(page: &mut String, told: &Value) {
    let (since, times) = (word(told, "since"), number(told, "times"));
    let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
    add(
        page,
        format_args!("since {}, {times}: <code>{}</code>", Escaped(since), Escaped(word(told, "error"))),
    );
}

/// The versions that nodes were ordered to give to clients: one, but for a moment.
fn pinned(one: &Value) -> BTreeSet<&str> {
    one["pinned"].as_object().into_iter().flatten().filter_map(|(_, version)| version.as_str()).collect()
}

fn of_dataset(page: &mut String, name: &str, one: &Value, nodes: &Value) {
    add(page, format_args!("<section><header><h2><a href=\"/{0}\">{0}</a></h2>", Escaped(name)));
    add(page, format_args!("<span class=\"soft\">{}</span></header>", Escaped(word(one, "content_type"))));
    for version in pinned(one) {
        let (dataset, version) = (Escaped(name), Escaped(version));
        add(
            page,
            format_args!(
                "<article><b>Pinned to {version}</b>: <code>partage dataset rollback {dataset} --latest</code> follows \
                 the latest version again</article>"
            ),
        );
    }
    let errors = one["source_errors"].as_object().into_iter().flatten();
    // What is wrong with all of the source is said above; a dataset may have had a trouble of its own before.
    let own = errors.filter(|(node, told)| nodes[node.as_str()]["source_error"] != **told);
    for (node, told) in own.take(TROUBLES) {
        *page += "<article class=\"trouble\">";
        add(page, format_args!("<b>Not read from the source</b> at {}, ", Escaped(node)));
        trouble(page, told);
        *page += "</article>";
    }
    for refused in list(&one["refused"]).filter_map(Value::as_str) {
        add(
            page,
            format_args!(
                "<article class=\"trouble\"><b>No version</b>: <code>{}</code></article>",
                Escaped(refused)
            ),
        );
    }
    let versions = one["versions"].as_object();
    if versions.is_none_or(serde_json::Map::is_empty) {
        *page += "<article class=\"soft\">No version yet.</article>";
    }
    // The latest first.
    for (name, version) in versions.into_iter().flatten().rev() {
        of_version(page, name, version);
    }
    *page += "</section>";
}

fn of_version(page: &mut String, name: &str, version: &Value) {
    let nodes = || version["nodes"].as_object().into_iter().flatten().map(|(_, node)| node);
    add(page, format_args!("<article><header><h3>{}</h3>", Escaped(name)));
    for state in ["ACTIVE", "BUILDING", "HELD", "REMOVING", "ERROR"] {
        let count = nodes().filter(|node| node["state"] == *state).count();
        if count > 0 {
            let class = state.to_ascii_lowercase();
            add(page, format_args!("<span class=\"tag {class}\">{state} &times; {count}</span>"));
        }
    }
    add(
        page,
        format_args!(
            "<span class=\"soft\">{}</span></header><div class=\"facts\">",
            Escaped(word(version, "path"))
        ),
    );
    let fact = |page: &mut String, what: &str, value: String, class: &str| {
        add(page, format_args!("<div><b class=\"{class}\">{value}</b><span>{what}</span></div>"));
    };
    let (missing, few, many) = (
        number(version, "missing_partitions"),
        number(version, "underreplicated_partitions"),
        number(version, "overreplicated_partitions"),
    );
    fact(page, "partitions", number(version, "num_partitions").to_string(), "");
    let average = version["average_replication"].as_f64().unwrap_or(0.0);
    fact(
        page,
        "replicas on average",
        format!("{average:.2} of {}", number(version, "target_replication")),
        "",
    );
    // What nobody serves yet lacks nothing that anybody would miss.
    let class = |count: u64, class| if count > 0 && is_served(version) { class } else { "" };
    fact(page, "missing", missing.to_string(), class(missing, "bad"));
    fact(page, "too few replicas", few.to_string(), class(few, "warn"));
    fact(page, "too many", many.to_string(), "");
    fact(page, "keys, over all replicas", spaced(nodes().map(|node| number(node, "keys")).sum()), "");
    fact(page, "on disk, over all replicas", size(nodes().map(|node| number(node, "bytes")).sum()), "");
    *page += "</div>";
    squares(page, version);
    *page += "<div class=\"wide\"><table><tr><th>node<th>state<th>partitions<th>keys<th>bytes<th>in flight<th>loading</tr>";
    nodes().for_each(|node| of_node(page, node));
    *page += "</table></div></article>";
}

/// Whether clients of any node get it.
fn is_served(version: &Value) -> bool {
    version["nodes"].as_object().into_iter().flatten().any(|(_, node)| node["current"] == true)
}

/// One square a partition, coloured by how many have it.
fn squares(page: &mut String, version: &Value) {
    let partitions = number(version, "num_partitions");
    if partitions > SQUARES {
        return;
    }
    let target = number(version, "target_replication");
    let mut replicas = vec![0; partitions as usize];
    for node in version["nodes"].as_object().into_iter().flatten().map(|(_, node)| node) {
        for partition in list(&node["partitions"]).filter(|_| node["state"] != "ERROR") {
            if let Some(count) = replicas.get_mut(partition.as_u64().unwrap_or(u64::MAX) as usize) {
                *count += 1;
            }
        }
    }
    *page += "<div class=\"grid\">";
    for (partition, count) in replicas.into_iter().enumerate() {
        let class = match count {
            0 if is_served(version) => "r0",
            0 => "none",
            count if count < target => "few",
            count if count > target => "many",
            _ => "",
        };
        add(page, format_args!("<i class=\"{class}\" title=\"partition {partition}: on {count}\"></i>"));
    }
    *page += "</div>";
}

fn is_loading(node: &Value) -> bool {
    let count = |name| number(&node["loading"], name);
    node["state"] == "BUILDING"
        && (count("bytes") < count("bytes_in_all") || count("partitions") < count("partitions_in_all"))
}

fn of_node(page: &mut String, node: &Value) {
    let state = word(node, "state");
    let class = state.to_ascii_lowercase();
    add(page, format_args!("<tr><td>{}", Escaped(word(node, "name"))));
    if !word(node, "shard_id").is_empty() {
        add(page, format_args!(" <span class=\"soft\">({})</span>", Escaped(word(node, "shard_id"))));
    }
    add(page, format_args!("<td><span class=\"tag {}\">{}</span>", Escaped(&class), Escaped(state)));
    if node["current"] == true {
        *page += " <span class=\"soft\">clients get it</span>";
    }
    if !word(node, "error").is_empty() {
        add(page, format_args!("<br><span class=\"bad\">{}</span>", Escaped(word(node, "error"))));
    }
    if !word(node, "next_try_at").is_empty() {
        let (tries, at) = (number(node, "tries"), word(node, "next_try_at"));
        add(
            page,
            format_args!("<br><span class=\"soft\">failed {tries} times; again at {}</span>", Escaped(at)),
        );
    }
    if !word(node, "held").is_empty() {
        add(page, format_args!("<br><span class=\"warn\">{}</span>", Escaped(word(node, "held"))));
    }
    for (partition, reason) in node["damaged"].as_object().into_iter().flatten() {
        let reason = reason.as_str().unwrap_or_default();
        add(page, format_args!("<br><span class=\"bad\">partition {partition}: {}</span>", Escaped(reason)));
    }
    for peer in list(&node["differing"]).filter_map(Value::as_str) {
        let why = "has other files under this name: nothing of it is used here";
        add(page, format_args!("<br><span class=\"bad\">{} {why}</span>", Escaped(peer)));
    }
    add(page, format_args!("<td class=\"parts\">{}", runs(&node["partitions"])));
    let (keys, bytes) = (spaced(number(node, "keys")), size(number(node, "bytes")));
    add(page, format_args!("<td>{keys}<td>{bytes}<td>{}<td>", number(node, "in_flight")));
    let (done, all) = (number(&node["loading"], "bytes"), number(&node["loading"], "bytes_in_all"));
    let count = |name| number(&node["loading"], name);
    let (ready, wanted) = (count("partitions"), count("partitions_in_all"));
    if is_loading(node) {
        add(
            page,
            format_args!(
                "<progress max=\"{all}\" value=\"{done}\"></progress><br>{ready} of {wanted} partitions, {} of {}",
                size(done),
                size(all)
            ),
        );
    } else {
        *page += "<span class=\"soft\">&ndash;</span>";
    }
    *page += "</tr>";
}

/// `0–3, 7`.
fn runs(partitions: &Value) -> String {
    let numbers: Vec<u64> = list(partitions).filter_map(Value::as_u64).collect();
    let runs = numbers.chunk_by(|a, b| *b == a + 1).map(|run| match run {
        [one] => one.to_string(),
        [first, second] => format!("{first}, {second}"),
        [first, .., last] => format!("{first}&ndash;{last}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// Digits in groups of three.
fn spaced(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn size(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_comes_from_elsewhere_is_escaped() {
        let status = json!({
            "node": "<b>&",
            "unreachable": ["\"x'"],
            "dbs": { "a": { "content_type": "<i>", "versions": { "1": {
                "path": "<script>", "num_partitions": 2, "target_replication": 1,
                "nodes": { "n": { "name": "<n>", "state": "ERROR", "error": "<oops>", "partitions": [0] } },
            } } } },
        });
        let page = render(&status, Some("a"));
        for raw in ["<b>", "<i>", "<script>", "<n>", "<oops>", "\"x'"] {
            assert!(!page.contains(raw), "{raw}");
        }
        assert!(page.contains("&lt;oops&gt;") && page.contains("partition 1: on 0"));
        assert!(page.contains("content=\"30\""), "nothing is being loaded");
        assert!(
            page.contains("0 of 1 datasets are served") && page.contains("1 version is not loaded"),
            "{page}"
        );
    }

    #[test]
    fn what_is_being_loaded_is_shown_anew_and_what_does_not_work_stands_above() {
        let trouble = json!({ "error": "403", "since": "2026-01-01T00:00:00Z", "times": 7 });
        let own = json!({ "error": "no column", "since": "2025-01-01T00:00:00Z", "times": 1 });
        let version = json!({ "path": "", "num_partitions": 1, "nodes": { "n": {
            "name": "n", "state": "BUILDING", "partitions": [],
            "loading": { "partitions": 1, "partitions_in_all": 3, "bytes": 1024, "bytes_in_all": 4096 },
        } } });
        let status = json!({
            "node": "n",
            "nodes": { "n": {
                "source_error": trouble, "coordination_error": trouble, "coordinator_error": trouble,
                "store_check": { "bytes": 1024, "bytes_in_all": 2048 },
            } },
            "dbs": {
                "a": {
                    "versions": { "1": version }, "source_errors": { "n": trouble, "m": trouble },
                    "pinned": { "n": "day-1", "m": "day-1" },
                },
                "b": { "versions": {}, "source_errors": { "n": own } },
            },
        });
        let page = render(&status, None);
        for part in [
            "http-equiv=\"refresh\" content=\"2\"",
            "1 version is being loaded",
            "1 of 3 partitions, 1.0 KiB of 4.0 KiB",
            "The source cannot be read",
            "7 times: <code>403",
            "<b>Pinned to day-1</b>: <code>partage dataset rollback a --latest</code>",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(page.contains("The coordination service is away") && !page.contains("class=\"r0\""));
        assert!(page.contains("The coordinator is away") && page.contains("1.0 KiB of 2.0 KiB"), "{page}");
        assert_eq!(page.matches("Not read from the source").count(), 2, "of m, and what b has of its own");
        assert!(page.contains("since 2025-01-01T00:00:00Z, once: <code>no column"), "{page}");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(runs(&json!([0, 1, 2, 3, 7, 9, 10])), "0&ndash;3, 7, 9, 10");
        assert_eq!([spaced(0), spaced(999), spaced(1234567)], ["0", "999", "1,234,567"]);
        assert_eq!([size(1023), size(1536), size(3 << 30)], ["1023 B", "1.5 KiB", "3.0 GiB"]);
    }
}
