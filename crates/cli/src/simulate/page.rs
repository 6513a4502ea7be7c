//! The answer as one page: plots, the table's figures, the sentences. It loads nothing, so it can be mailed, kept
//! with a design, and read without a network, in light and dark.

use super::findings::{findings, least_part, part};
use super::plot::{self, Cell, Grid, escape};
use super::{Answer, table};
use partage_core::base::count::counted;
use partage_service::whatif::{Outcome, Step};
use std::fmt::Write;

/// Nodes of which each scheme has bars; with more, the page shows the fullest ones.
const NODES: usize = 300;

/// A bar of balance is as long as its cell at this many times the fair share, or at the largest, if that is less.
const FULL_BALANCE: f64 = 3.0;

const STYLE: &str = "
:root{color-scheme:light dark;--ground:#fff;--ink:#1d2430;--soft:#5b6675;--band:#f4f6f9;--bar:#3f7fbf;--over:#c8452d;--ideal:#d98a00;--rule:#dde2ea}
@media(prefers-color-scheme:dark){:root{--ground:#14181f;--ink:#e3e8ef;--soft:#97a3b3;--band:#1b212a;--bar:#5b9ad6;--over:#ef7359;--ideal:#f0b13c;--rule:#2c3440}}
body{background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:980px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2.2rem 0 .2rem}h3{font-size:.85rem;font-weight:600;margin:0 0 .2rem;overflow-wrap:anywhere}
p{margin:.3rem 0;max-width:75ch}.soft{color:var(--soft)}
.found li{margin:.3rem 0;max-width:75ch}.found{padding-left:1.2rem}
.scroll{overflow-x:auto}svg{display:block;width:100%;height:auto;min-width:0}.scroll svg{min-width:720px}
svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .head{fill:var(--soft);font-weight:600}svg .figure{fill:var(--soft);font-variant-numeric:tabular-nums}svg .tiny{font-size:9px;fill:var(--soft)}
.band{fill:var(--band)}.bar{fill:var(--bar)}.over{fill:var(--over)}.ideal{stroke:var(--ideal);stroke-width:2}
.nodes{display:grid;grid-template-columns:repeat(auto-fill,minmax(270px,1fr));gap:1.2rem 1.6rem;margin-top:.8rem}
table{border-collapse:collapse;font-size:.85rem;margin-top:.6rem;font-variant-numeric:tabular-nums}th,td{padding:.25rem .8rem .25rem 0;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:600}
code{font-size:.9em}
";

pub fn page(answer: &Answer) -> String {
    let comparison = &answer.comparison;
    let start = &comparison.scenes[0];
    let (keys, file) = (counted(start.total.keys, "key"), escape(&answer.keys));
    let word = escape(answer.load_word());
    let unit = answer.moved_unit();
    let found: String =
        findings(answer).iter().fold(String::new(), |list, text| list + "<li>" + &escape(text) + "</li>");
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{file} on {nodes}</title><style>{STYLE}</style></head><body>\n\
         <h1>What would happen to these keys?</h1>\n\
         <p class=\"soft\">{keys} from <code>{file}</code> on {nodes}, hashed by {hash}.</p>\n\
         <ul class=\"found\">{found}</ul>\n\
         <h2>Balance</h2><p class=\"soft\">The fullest node over the mean, of {word}, after each event. \
         The tick is 1: all even. A red bar is longer than there is room for.</p>\n\
         <div class=\"scroll\">{balance}</div>\n\
         <h2>Movement</h2><p class=\"soft\">Part of the {unit} that each event moves to another node. \
         The tick is the least possible between even states. New keys arrive, they do not move.</p>\n\
         <div class=\"scroll\">{movement}</div>\n\
         <h2>Nodes</h2><p class=\"soft\">What each node carries of {word} at the start; the line is its fair \
         share.{note}</p>\n<div class=\"nodes\">{bars}</div>\n\
         <h2>The hottest keys in the end</h2>{hottest}\n\
         <h2>The lookup</h2>{lookup}\n</body></html>\n",
        nodes = counted(start.present.len(), "node"),
        hash = answer.hash,
        balance = balance(answer),
        movement = movement(answer),
        note = if start.present.len() > NODES { " Only the fullest nodes are shown." } else { "" },
        bars = bars(answer),
        hottest = hottest(answer),
        lookup = lookup(answer),
    )
}

fn rows(answer: &Answer, cells: impl Fn(&Outcome) -> Vec<Cell>) -> Vec<(String, Vec<Cell>)> {
    answer.comparison.outcomes.iter().map(|outcome| (outcome.scheme.to_string(), cells(outcome))).collect()
}

fn balance(answer: &Answer) -> String {
    let cell = |step: &Step| {
        let value = step.balances.weight.max_over_mean;
        Cell { value, label: format!("{value:.2}"), ideal: 1.0 }
    };
    let rows = rows(answer, |outcome| outcome.steps.iter().map(cell).collect());
    let largest = rows.iter().flat_map(|(_, cells)| cells).fold(1.2, |max: f64, cell| max.max(cell.value));
    let scenes = &answer.comparison.scenes;
    let columns =
        scenes.iter().map(|scene| if scene.title.is_empty() { "start".into() } else { scene.title.clone() });
    Grid { columns: columns.collect(), rows, full: largest.min(FULL_BALANCE), zero: 0.0 }
        .svg("Balance of each scheme")
}

fn movement(answer: &Answer) -> String {
    let scenes = &answer.comparison.scenes;
    let cell = |(at, step): (usize, &Step)| {
        let value = answer.moved(step).map_or(0.0, |moved| part(moved.moved, moved.of));
        let ideal = least_part(&answer.comparison, &scenes[at - 1], &scenes[at]);
        Cell { value, label: format!("{:.1} %", 100.0 * value), ideal }
    };
    let rows = rows(answer, |outcome| outcome.steps.iter().enumerate().skip(1).map(cell).collect());
    let columns = scenes.iter().skip(1).map(|scene| scene.title.clone()).collect();
    Grid { columns, rows, full: 1.0, zero: 0.0 }.svg("What moves")
}

/// The nodes of each scheme at the start, all at one scale.
fn bars(answer: &Answer) -> String {
    let comparison = &answer.comparison;
    let present = &comparison.scenes[0].present;
    let capacity = |at: &u32| f64::from(comparison.roster[*at as usize].capacity);
    let whole: f64 = present.iter().map(capacity).sum();
    let shares = |outcome: &Outcome| {
        let loads = &outcome.steps[0].loads;
        let sum: f64 = loads.iter().map(|load| load.weight).sum();
        let share = |at: &u32| {
            let share = part(loads[*at as usize].weight, sum) * whole / capacity(at);
            (comparison.roster[*at as usize].name.to_string(), share)
        };
        let mut shares: Vec<(String, f64)> = present.iter().map(share).collect();
        if shares.len() > NODES {
            shares.sort_by(|a, b| b.1.total_cmp(&a.1));
            shares.truncate(NODES);
        }
        shares
    };
    let all: Vec<Vec<(String, f64)>> = comparison.outcomes.iter().map(shares).collect();
    let largest = all.iter().flatten().fold(1.2, |max: f64, (_, share)| max.max(*share)).min(FULL_BALANCE);
    let mut html = String::new();
    for (outcome, shares) in comparison.outcomes.iter().zip(all) {
        let name = outcome.scheme.to_string();
        // Writing to a string cannot fail.
        let _ = write!(html, "<div><h3>{}</h3>{}</div>", escape(&name), plot::bars(&name, &shares, largest));
    }
    html
}

fn hottest(answer: &Answer) -> String {
    let comparison = &answer.comparison;
    let (Some(scene), Some(first)) = (comparison.scenes.last(), comparison.outcomes.first()) else {
        return String::new();
    };
    let keys = first.steps.last().map_or(&[][..], |step| &step.hottest_keys);
    let row = |hot: &partage_service::whatif::HotKey| {
        let share = part(hot.weight, scene.total.weight);
        format!(
            "<tr><td><code>{}</code></td><td>{:.3} %</td></tr>",
            escape(&hot.key.to_string()),
            100.0 * share
        )
    };
    let rows: String = keys.iter().map(row).collect();
    format!("<table><tr><th>key</th><th>of all load</th></tr>{rows}</table>")
}

fn lookup(answer: &Answer) -> String {
    let mut rows = String::new();
    for (outcome, rate) in answer.comparison.outcomes.iter().zip(&answer.lookups_per_s) {
        let step = &outcome.steps[0];
        let shards = step.shards.map_or("–".to_owned(), |shards| shards.to_string());
        let rate = rate.map_or("–".to_owned(), table::rounded);
        let memory = table::rounded(step.memory_bytes as f64);
        // Writing to a string cannot fail.
        let _ = write!(
            rows,
            "<tr><td>{}</td><td>{shards}</td><td>{memory}</td><td>{rate}</td></tr>",
            escape(&outcome.scheme.to_string())
        );
    }
    format!(
        "<p class=\"soft\">One core, at the start.</p><table><tr><th>scheme</th><th>shards</th><th>bytes</th>\
         <th>lookups a second</th></tr>{rows}</table>"
    )
}
