//! The status page for people: no script, nothing from elsewhere, and every text escaped.

use super::status::replicas;
use partage_service::dataset::node::State;
use partage_wire::dataset::status::{Dataset, Datasets, Loading, LocalVersion, Node, Trouble, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Squares that are shown for a version; of more partitions only the counts are.
const SQUARES: u32 = 2_048;

/// After so many seconds the page is shown anew when nothing is being loaded.
const REFRESH_S: u32 = 30;

/// Nodes of which one and the same trouble is shown.
const TROUBLES: usize = 5;

/// The page of all datasets, or of one.
pub fn render(status: &Datasets, dataset: Option<&str>) -> String {
    let mut page = String::with_capacity(16 << 10);
    let title = dataset.map_or_else(|| "Datasets".to_owned(), |name| format!("Dataset {name}"));
    page += "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">";
    add(
        &mut page,
        format_args!("<title>{}</title><style>{}</style><main>", Escaped(&title), include_str!("page.css")),
    );
    let versions = || status.dbs.values().flat_map(|one| one.versions.values());
    let mut nodes = versions().flat_map(|version| version.nodes.values());
    // A person who watches it need not press a key, and sees what is loaded go on.
    let again_s = if nodes.any(is_loading) { 2 } else { REFRESH_S };
    add(&mut page, format_args!("<meta http-equiv=\"refresh\" content=\"{again_s}\">"));
    add(&mut page, format_args!("<header><h1>{}</h1>", Escaped(&title)));
    add(
        &mut page,
        format_args!("<span class=\"soft\">as node {} and its peers tell it</span>", Escaped(&status.node)),
    );
    if dataset.is_some() {
        page += "<a href=\"/\">all datasets</a>";
    }
    page += "</header>";
    let silent = status.unreachable.as_deref().unwrap_or_default().join(", ");
    if !silent.is_empty() {
        add(
            &mut page,
            format_args!(
                "<p class=\"alert\">No word from {}: what only they have is not counted.</p>",
                Escaped(&silent)
            ),
        );
    }
    summary(&mut page, status);
    of_nodes(&mut page, &status.nodes);
    for (name, one) in &status.dbs {
        of_dataset(&mut page, name, one, &status.nodes);
    }
    if status.dbs.is_empty() {
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

/// How all stands, in a line.
fn summary(page: &mut String, status: &Datasets) {
    let served = status.dbs.values().filter(|one| one.versions.values().any(is_served)).count();
    add(page, format_args!("<p class=\"soft\">{served} of {} datasets are served", status.dbs.len()));
    match status.nodes.len() {
        1 => *page += " by 1 node",
        nodes => add(page, format_args!(" by {nodes} nodes")),
    }
    let versions = || status.dbs.values().flat_map(|one| one.versions.values());
    for (state, word, class) in [
        (State::Building, "being loaded", "soft"),
        (State::Held, "held", "warn"),
        (State::Error, "not loaded", "bad"),
    ] {
        match versions().filter(|version| version.in_state(state).next().is_some()).count() {
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
fn of_nodes(page: &mut String, nodes: &BTreeMap<String, Node>) {
    alerts(page, "The source cannot be read", nodes, |node| node.source_error.as_ref());
    alerts(page, "The coordination service is away", nodes, |node| node.coordination_error.as_ref());
    alerts(page, "The coordinator is away", nodes, |node| node.coordinator_error.as_ref());
    let checks = nodes.iter().filter_map(|(name, node)| Some((name, node.store_check?)));
    for (node, check) in checks.take(TROUBLES) {
        add(
            page,
            format_args!(
                "<p class=\"soft\">{} reads its store through for damage: {} of {}</p>",
                Escaped(node),
                size(check.bytes),
                size(check.bytes_in_all)
            ),
        );
    }
}

fn alerts(
    page: &mut String,
    what: &str,
    nodes: &BTreeMap<String, Node>,
    error: fn(&Node) -> Option<&Trouble>,
) {
    let all: Vec<_> = nodes.iter().filter_map(|(name, node)| Some((name, error(node)?))).collect();
    for (node, told) in all.iter().take(TROUBLES) {
        *page += "<p class=\"alert\">";
        add(page, format_args!("<b>{what}</b> at {}, ", Escaped(node)));
        trouble(page, told);
        *page += "</p>";
    }
    if all.len() > TROUBLES {
        add(page, format_args!("<p class=\"alert\">And so at {} more nodes.</p>", all.len() - TROUBLES));
    }
}

fn trouble(page: &mut String, told: &Trouble) {
    let since = told.since_and_times();
    add(page, format_args!("{}: <code>{}</code>", Escaped(&since), Escaped(&told.error)));
}

fn of_dataset(page: &mut String, name: &str, one: &Dataset, nodes: &BTreeMap<String, Node>) {
    add(page, format_args!("<section><header><h2><a href=\"/{0}\">{0}</a></h2>", Escaped(name)));
    add(page, format_args!("<span class=\"soft\">{}</span></header>", Escaped(&one.content_type)));
    // The versions that nodes were ordered to give to clients: one, but for a moment.
    for version in one.pinned.values().collect::<BTreeSet<_>>() {
        let (dataset, version) = (Escaped(name), Escaped(version));
        add(
            page,
            format_args!(
                "<article><b>Pinned to {version}</b>: <code>partage dataset rollback {dataset} --latest</code> follows \
                 the latest version again</article>"
            ),
        );
    }
    // What is wrong with all of the source is said above; a dataset may have had a trouble of its own before.
    let of_all = |node: &String| nodes.get(node).and_then(|node| node.source_error.as_ref());
    let own = one.source_errors.iter().filter(|(node, told)| of_all(node) != Some(*told));
    for (node, told) in own.take(TROUBLES) {
        *page += "<article class=\"trouble\">";
        add(page, format_args!("<b>Not read from the source</b> at {}, ", Escaped(node)));
        trouble(page, told);
        *page += "</article>";
    }
    for refused in &one.refused {
        add(
            page,
            format_args!(
                "<article class=\"trouble\"><b>No version</b>: <code>{}</code></article>",
                Escaped(refused)
            ),
        );
    }
    if one.versions.is_empty() {
        *page += "<article class=\"soft\">No version yet.</article>";
    }
    // The latest first.
    for (version, told) in one.versions.iter().rev() {
        of_version(page, (name, version), told);
    }
    *page += "</section>";
}

fn of_version(page: &mut String, (dataset, name): (&str, &str), version: &Version) {
    add(page, format_args!("<article><header><h3>{}</h3>", Escaped(name)));
    for state in [State::Active, State::Building, State::Held, State::Removing, State::Error] {
        let count = version.in_state(state).count();
        if count > 0 {
            let class = state.word().to_ascii_lowercase();
            add(page, format_args!("<span class=\"tag {class}\">{state} &times; {count}</span>"));
        }
    }
    add(
        page,
        format_args!("<span class=\"soft\">{}</span></header><div class=\"facts\">", Escaped(&version.path)),
    );
    let fact = |page: &mut String, what: &str, value: String, class: &str| {
        add(page, format_args!("<div><b class=\"{class}\">{value}</b><span>{what}</span></div>"));
    };
    let (missing, few) = (version.missing_partitions, version.underreplicated_partitions);
    fact(page, "partitions", version.num_partitions.to_string(), "");
    let average = format!("{:.2} of {}", version.average_replication, version.target_replication);
    fact(page, "replicas on average", average, "");
    // A version that no node serves yet lacks nothing that a client would miss.
    let class = |count: u32, class| if count > 0 && is_served(version) { class } else { "" };
    fact(page, "missing", missing.to_string(), class(missing, "bad"));
    fact(page, "too few replicas", few.to_string(), class(few, "warn"));
    fact(page, "too many", version.overreplicated_partitions.to_string(), "");
    let nodes = || version.nodes.values();
    fact(page, "keys, over all replicas", spaced(nodes().map(|node| node.keys).sum()), "");
    fact(page, "on disk, over all replicas", size(nodes().map(|node| node.bytes).sum()), "");
    *page += "</div>";
    squares(page, version);
    *page += "<div class=\"wide\"><table><tr><th>node<th>state<th>partitions<th>keys<th>bytes<th>in flight<th>loading</tr>";
    nodes().for_each(|node| of_node(page, (dataset, name), node));
    *page += "</table></div></article>";
}

/// Whether clients of any node get it.
fn is_served(version: &Version) -> bool {
    version.served_by() > 0
}

/// One square a partition, coloured by how many have it.
fn squares(page: &mut String, version: &Version) {
    if version.num_partitions > SQUARES {
        return;
    }
    let (replicas, target) = (replicas(version), version.target_replication);
    *page += "<div class=\"grid\">";
    for partition in 0..version.num_partitions {
        let count = replicas.get(&partition).copied().unwrap_or(0);
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

fn is_loading(node: &LocalVersion) -> bool {
    let loading = &node.loading;
    node.state.is(State::Building)
        && (loading.bytes < loading.bytes_in_all || loading.partitions < loading.partitions_in_all)
}

fn of_node(page: &mut String, (dataset, version): (&str, &str), node: &LocalVersion) {
    let state = node.state.to_string();
    let class = state.to_ascii_lowercase();
    add(page, format_args!("<tr><td>{}", Escaped(&node.name)));
    if !node.shard_id.is_empty() {
        add(page, format_args!(" <span class=\"soft\">({})</span>", Escaped(&node.shard_id)));
    }
    add(page, format_args!("<td><span class=\"tag {}\">{}</span>", Escaped(&class), Escaped(&state)));
    if node.current {
        *page += " <span class=\"soft\">clients get it</span>";
    }
    if let Some(error) = &node.error {
        add(page, format_args!("<br><span class=\"bad\">{}</span>", Escaped(error)));
    }
    match (node.tries, &node.next_try_at) {
        _ if node.superseded => *page += "<br><span class=\"soft\">not tried again</span>",
        (Some(tries), Some(at)) => add(
            page,
            format_args!("<br><span class=\"soft\">failed {tries} times; again at {}</span>", Escaped(at)),
        ),
        (None, _) | (_, None) => {}
    }
    if let Some(held) = &node.held {
        let (dataset, version, held) = (Escaped(dataset), Escaped(version), Escaped(held));
        add(
            page,
            format_args!(
                "<br><span class=\"warn\">{held}: <code>partage dataset release {dataset} {version}</code> gives it to \
                 clients</span>"
            ),
        );
    }
    for (partition, reason) in &node.damaged {
        add(page, format_args!("<br><span class=\"bad\">partition {partition}: {}</span>", Escaped(reason)));
    }
    for peer in &node.differing {
        let why = "has other files under this name: nothing of it is used here";
        add(page, format_args!("<br><span class=\"bad\">{} {why}</span>", Escaped(peer)));
    }
    add(page, format_args!("<td class=\"parts\">{}", runs(&node.partitions)));
    let (keys, bytes) = (spaced(node.keys), size(node.bytes));
    add(page, format_args!("<td>{keys}<td>{bytes}<td>{}<td>", node.in_flight));
    let Loading { partitions, partitions_in_all, bytes, bytes_in_all } = node.loading;
    if is_loading(node) {
        add(
            page,
            format_args!(
                "<progress max=\"{bytes_in_all}\" value=\"{bytes}\"></progress><br>{partitions} of {partitions_in_all} \
                 partitions, {} of {}",
                size(bytes),
                size(bytes_in_all)
            ),
        );
    } else {
        *page += "<span class=\"soft\">&ndash;</span>";
    }
    *page += "</tr>";
}

/// The numbers of partitions as people read them: `0–3, 7`.
fn runs(partitions: &[u32]) -> String {
    let runs = partitions.chunk_by(|a, b| *b == a + 1).map(|run| match run {
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
    use serde_json::{Value, json};

    fn rendered(status: Value, dataset: Option<&str>) -> String {
        render(&serde_json::from_value(status).unwrap(), dataset)
    }

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
        let page = rendered(status, Some("a"));
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
                    "content_type": "", "versions": { "1": version }, "source_errors": { "n": trouble, "m": trouble },
                    "pinned": { "n": "day-1", "m": "day-1" },
                },
                "b": { "content_type": "", "versions": {}, "source_errors": { "n": own } },
            },
        });
        let page = rendered(status, None);
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
        assert_eq!(runs(&[0, 1, 2, 3, 7, 9, 10]), "0&ndash;3, 7, 9, 10");
        assert_eq!([spaced(0), spaced(999), spaced(1234567)], ["0", "999", "1,234,567"]);
        assert_eq!([size(1023), size(1536), size(3 << 30)], ["1023 B", "1.5 KiB", "3.0 GiB"]);
    }
}
