//! Bar charts as inline SVG: text out, nothing loaded from anywhere.
//!
//! Two shapes are enough. A [`Grid`] has a scheme a row and an event a column, and one bar in each cell, so that
//! the eye compares down (schemes) and across (events) at one scale. [`bars`] shows all nodes of one scheme
//! beside each other. Colours are classes of the page's style, so both follow its light and dark.

use std::fmt::Write;

const LABEL_WIDTH: f64 = 190.0;
const CELL_WIDTH: f64 = 150.0;
const ROW_HEIGHT: f64 = 22.0;
const HEAD_HEIGHT: f64 = 24.0;
/// Room for the figure behind a bar.
const FIGURE_WIDTH: f64 = 52.0;

/// One bar of a [`Grid`].
#[derive(Debug, Clone)]
pub struct Cell {
    /// How long, in the grid's unit.
    pub value: f64,
    /// The figure behind it.
    pub label: String,
    /// Where the ideal is, in the same unit; drawn as a tick.
    pub ideal: f64,
}

/// Bars in rows and columns, all at one scale.
#[derive(Debug)]
pub struct Grid {
    /// The titles above the columns; each row has as many cells.
    pub columns: Vec<String>,
    /// A name and its cells.
    pub rows: Vec<(String, Vec<Cell>)>,
    /// The value at which a bar is as long as its cell; longer ones are cut and marked.
    pub full: f64,
    /// The value at which bars begin.
    pub zero: f64,
}

/// `text` with what HTML would misread made harmless.
pub fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
        escaped
    })
}

/// `text` with at most so many characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Writing to a string cannot fail; this says so in one place.
macro_rules! put {
    ($svg:expr, $($what:tt)*) => { let _ = write!($svg, $($what)*); };
}

impl Grid {
    /// The chart as an SVG element, with `title` for screen readers.
    pub fn svg(&self, title: &str) -> String {
        let width = LABEL_WIDTH + CELL_WIDTH * self.columns.len() as f64;
        let height = HEAD_HEIGHT + ROW_HEIGHT * self.rows.len() as f64 + 4.0;
        let mut svg = open(width, height, title);
        for (at, column) in self.columns.iter().enumerate() {
            let x = LABEL_WIDTH + CELL_WIDTH * at as f64;
            put!(svg, r#"<text class="head" x="{x:.0}" y="14">{}"#, escape(&cut(column, 21)));
            put!(svg, "<title>{}</title></text>", escape(column));
        }
        for (at, (name, cells)) in self.rows.iter().enumerate() {
            let y = HEAD_HEIGHT + ROW_HEIGHT * at as f64;
            if at % 2 == 0 {
                put!(
                    svg,
                    r#"<rect class="band" x="0" y="{y:.0}" width="{width:.0}" height="{ROW_HEIGHT:.0}"/>"#
                );
            }
            put!(svg, r#"<text x="6" y="{:.0}">{}"#, y + 15.0, escape(&cut(name, 29)));
            put!(svg, "<title>{}</title></text>", escape(name));
            for (column, cell) in cells.iter().enumerate() {
                self.cell(&mut svg, LABEL_WIDTH + CELL_WIDTH * column as f64, y, cell);
            }
        }
        svg.push_str("</svg>");
        svg
    }

    fn cell(&self, svg: &mut String, x: f64, y: f64, cell: &Cell) {
        let room = CELL_WIDTH - FIGURE_WIDTH;
        let at = |value: f64| ((value - self.zero) / (self.full - self.zero)).clamp(0.0, 1.0) * room;
        let length = at(cell.value).max(1.0);
        let class = if cell.value > self.full { "bar over" } else { "bar" };
        put!(
            svg,
            r#"<rect class="{class}" x="{x:.0}" y="{:.0}" width="{length:.1}" height="12" rx="2"/>"#,
            y + 5.0
        );
        let tick = x + at(cell.ideal);
        put!(
            svg,
            r#"<line class="ideal" x1="{tick:.1}" x2="{tick:.1}" y1="{:.0}" y2="{:.0}"/>"#,
            y + 2.0,
            y + 20.0
        );
        let figure = x + length.max(at(cell.ideal)) + 5.0;
        put!(
            svg,
            r#"<text class="figure" x="{figure:.1}" y="{:.0}">{}</text>"#,
            y + 15.0,
            escape(&cell.label)
        );
    }
}

/// Names and shares (1 is fair) of nodes beside each other, at a scale at which `full` is the height. No more than
/// fit are named.
pub fn bars(title: &str, nodes: &[(String, f64)], full: f64) -> String {
    const WIDTH: f64 = 300.0;
    const HEIGHT: f64 = 84.0;
    const BASE: f64 = 68.0;
    let mut svg = open(WIDTH, HEIGHT, title);
    let step = WIDTH / nodes.len().max(1) as f64;
    let y = |share: f64| BASE - (share / full).clamp(0.0, 1.0) * (BASE - 6.0);
    for (at, (name, share)) in nodes.iter().enumerate() {
        let x = step * at as f64;
        let top = y(*share);
        let class = if *share > full { "bar over" } else { "bar" };
        let gap = if step > 4.0 { step * 0.15 } else { 0.0 };
        put!(
            svg,
            r#"<rect class="{class}" x="{:.2}" y="{top:.1}" width="{:.2}" height="{:.1}"><title>{}: {share:.2} times its share</title></rect>"#,
            x + gap / 2.0,
            (step - gap).max(0.2),
            BASE - top,
            escape(name)
        );
        if step >= 24.0 {
            put!(
                svg,
                r#"<text class="tiny" text-anchor="middle" x="{:.1}" y="80">{}</text>"#,
                x + step / 2.0,
                escape(&cut(name, 4))
            );
        }
    }
    let fair = y(1.0);
    put!(svg, r#"<line class="ideal" x1="0" x2="{WIDTH:.0}" y1="{fair:.1}" y2="{fair:.1}"/></svg>"#);
    svg
}

fn open(width: f64, height: f64, title: &str) -> String {
    format!(
        r#"<svg role="img" viewBox="0 0 {width:.0} {height:.0}" style="max-width:{width:.0}px"><title>{}</title>"#,
        escape(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_the_page() {
        let cell = Cell { value: 9.0, label: "<9>".into(), ideal: 1.0 };
        let grid = Grid {
            columns: vec!["<script>\"x\"</script>".into()],
            rows: vec![("a&b".into(), vec![cell])],
            full: 3.0,
            zero: 0.0,
        };
        let svg = grid.svg("t<");
        assert!(!svg.contains("<script") && svg.contains("&lt;script&gt;") && svg.contains("a&amp;b"));
        assert!(svg.contains("bar over"), "a bar that does not fit is marked");
        assert!(bars("<", &[("<n".into(), 1.0)], 2.0).contains("&lt;n: 1.00"));
    }
}
