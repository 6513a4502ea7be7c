//! The answer for people: one table.

use super::Answer;
use super::findings::{least_part, part};
use comfy_table::{CellAlignment, Table, presets};
use partage_core::base::count::counted;
use partage_service::whatif::Outcome;

/// Events beside each other in one table of at most 110 columns; more go into a further one below.
const EVENTS: usize = 4;

/// Longest title of an event above its column.
const TITLE: usize = 13;

/// The table, with a legend before it.
pub fn table(answer: &Answer) -> String {
    let comparison = &answer.comparison;
    let start = &comparison.scenes[0];
    let mut text = format!(
        "{} from {} on {}, hashed by {}\neven: the fullest node over the mean, of {}; moved: part of the {}\n",
        counted(start.total.keys, "key"),
        answer.keys,
        counted(start.present.len(), "node"),
        answer.hash,
        answer.load_word(),
        answer.moved_unit()
    );
    let events: Vec<usize> = (1..comparison.scenes.len()).collect();
    let mut blocks = events.chunks(EVENTS);
    text.push_str(&block(answer, blocks.next().unwrap_or(&[]), true));
    for events in blocks {
        text.push_str(&block(answer, events, false));
    }
    for (number, scene) in
        comparison.scenes.iter().enumerate().filter(|(_, s)| s.title.chars().count() > TITLE)
    {
        text.push_str(&format!("{number}. {}\n", scene.title));
    }
    text
}

fn block(answer: &Answer, events: &[usize], first: bool) -> String {
    let comparison = &answer.comparison;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut header = vec!["scheme".to_owned()];
    if first {
        header.push("start\neven   cv".to_owned());
    }
    for event in events {
        header.push(format!("{}\neven   moved", title(*event, &comparison.scenes[*event].title)));
    }
    if first {
        header.extend(["lookups\nper s".to_owned(), "table\nbytes".to_owned()]);
    }
    let columns = header.len();
    table.set_header(header);
    for (outcome, rate) in comparison.outcomes.iter().zip(&answer.lookups_per_s) {
        table.add_row(row(answer, outcome, *rate, events, first));
    }
    let mut least = vec!["(the least possible)".to_owned()];
    if first {
        least.push("1.00 0.00".to_owned());
    }
    for event in events {
        let part = least_part(comparison, &comparison.scenes[event - 1], &comparison.scenes[*event]);
        least.push(format!("1.00 {:>5.1} %", 100.0 * part));
    }
    least.resize(columns, String::new());
    table.add_row(least);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text: Vec<String> =
        table.lines().map(|line| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned()).collect();
    format!("\n{}\n", text.join("\n"))
}

fn row(answer: &Answer, outcome: &Outcome, rate: Option<f64>, events: &[usize], first: bool) -> Vec<String> {
    let mut row = vec![outcome.scheme.to_string()];
    let balance = |at: usize| outcome.steps[at].balances.weight;
    if first {
        row.push(format!("{:.2} {:.2}", balance(0).max_over_mean, balance(0).variation));
    }
    for event in events {
        let moved = answer.moved(&outcome.steps[*event]).map_or(0.0, |moved| part(moved.moved, moved.of));
        row.push(format!("{:.2} {:>5.1} %", balance(*event).max_over_mean, 100.0 * moved));
    }
    if first {
        row.push(rate.map_or("-".to_owned(), rounded));
        row.push(rounded(outcome.steps[0].memory_bytes as f64));
    }
    row
}

/// The title, or as much of it as fits.
fn title(number: usize, title: &str) -> String {
    if title.chars().count() <= TITLE {
        return title.to_owned();
    }
    let cut: String = title.chars().take(TITLE - 4).collect();
    format!("{number}. {cut}…")
}

/// A sentence in lines of at most 100 characters, where its words allow it.
pub fn wrapped(sentence: &str) -> String {
    let mut text = String::new();
    let mut length = 0;
    for word in sentence.split(' ') {
        let letters = word.chars().count();
        // A percent sign stays with its number.
        let full = length + 1 + letters > 100 && !word.starts_with('%');
        let end = match length {
            0 => "",
            _ if full => "\n  ",
            _ => " ",
        };
        length = if full { 2 + letters } else { length + end.len() + letters };
        text.push_str(end);
        text.push_str(word);
    }
    text
}

/// Three digits and a unit: 950, 12.3k, 4.56M.
pub fn rounded(number: f64) -> String {
    let (scaled, unit) = match number {
        n if n >= 1e9 => (n / 1e9, "G"),
        n if n >= 1e6 => (n / 1e6, "M"),
        n if n >= 1e3 => (n / 1e3, "k"),
        n => return format!("{n:.0}"),
    };
    match scaled {
        s if s >= 100.0 => format!("{s:.0}{unit}"),
        s if s >= 10.0 => format!("{s:.1}{unit}"),
        s => format!("{s:.2}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        for (number, text) in
            [(7.0, "7"), (999.0, "999"), (1_234.0, "1.23k"), (45_678.0, "45.7k"), (123_456_789.0, "123M")]
        {
            assert_eq!(rounded(number), text);
        }
    }

    #[test]
    fn sentences_are_wrapped_between_words() {
        let text = wrapped(&"word ".repeat(50));
        assert!(text.lines().count() == 3 && text.lines().all(|line| line.len() <= 100), "{text}");
        assert_eq!(text.split_whitespace().count(), 50);
    }

    #[test]
    fn long_titles_are_cut() {
        assert_eq!(title(3, "n9 joins"), "n9 joins");
        assert_eq!(title(4, "0ad-data gets 20 % of the load"), "4. 0ad-data …");
    }
}
