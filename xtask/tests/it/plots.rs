//! The plots of the book: the tables of figures in docs/benchmarks, as bars. A test compares them with the tables.
//!
//! With FERROCE_WRITE_PAGES=1 the test draws them anew.

use std::fs;

use ferroce_tests::svg::Svg;

use crate::workspace;

/// File, title, the first words of the table's heading row, the unit whose cells are drawn.
const PLOTS: [(&str, &str, &str, &str); 4] = [
    ("wire_rates", "Two hosts: gigabits a second (more is better)", "| | veth MTU 9000 |", "Gbit/s"),
    (
        "wire_times",
        "Two hosts: microseconds for half a round trip (less is better)",
        "| | veth MTU 9000 |",
        "µs",
    ),
    ("host_rates", "One host: gigabits a second (more is better)", "| | reference |", "Gbit/s"),
    ("host_times", "One host: microseconds (less is better)", "| | reference |", "µs"),
];
const COLOURS: [&str; 3] = ["#9aa9b8", "#6d8bab", "#b3541e"];
const WIDTH: usize = 680;
/// Where bars begin, and how long the longest is.
const LEFT: usize = 300;
const LONGEST: f64 = 290.0;
const BAR: usize = 16;
/// Characters of a row's name that fit left of the bars in one line, and the height of a line.
const NAME: usize = 40;
const LINE: usize = 15;

/// What a row of a table is called, and its figures, one a column.
struct Row {
    name: String,
    figures: Vec<Option<f64>>,
}

/// The names of the columns, and the rows that have a figure in the unit.
fn table(text: &str, heading: &str, unit: &str) -> (Vec<String>, Vec<Row>) {
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim().trim_matches('|');
        inner.split('|').map(|cell| cell.replace(['*', '`'], "").trim().to_owned()).collect()
    };
    let mut lines =
        text.lines().skip_while(|line| !line.starts_with(heading)).take_while(|line| line.starts_with('|'));
    let columns = lines.next().map(cells).unwrap_or_default().split_off(1);
    let mut before = String::new();
    let mut rows = Vec::new();
    for line in lines.skip(1) {
        let row = cells(line);
        // "the same, …" is of the row before.
        let name = row[0].replace("the same", &before);
        before.clone_from(&row[0]);
        let figures: Vec<_> = row[1..].iter().map(|cell| figure(cell, unit)).collect();
        if figures.iter().any(Option::is_some) {
            rows.push(Row { name, figures });
        }
    }
    (columns, rows)
}

/// The number of a cell such as `72 Gbit/s (ib_send_bw)`.
fn figure(cell: &str, unit: &str) -> Option<f64> {
    let (number, rest) = cell.split_once(' ')?;
    rest.starts_with(unit).then(|| number.parse().ok())?
}

/// A name in lines that fit.
fn wrapped(name: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= NAME => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn draw(title: &str, columns: &[String], rows: &[Row]) -> String {
    let most =
        rows.iter().flat_map(|row| row.figures.iter().flatten()).fold(0.0, |most: f64, one| most.max(*one));
    let mut svg = Svg::default();
    svg.text(20, 26, "font-weight=\"bold\"", title);
    let mut y = 44;
    for (column, colour) in columns.iter().zip(COLOURS) {
        let place = format_args!("x=\"{LEFT}\" y=\"{y}\"");
        svg.shape("rect", format_args!("{place} width=\"12\" height=\"12\" fill=\"{colour}\""));
        svg.text(LEFT + 20, y + 11, "", column);
        y += 20;
    }
    y += 10;
    for row in rows {
        let bars = row.figures.iter().zip(COLOURS).filter_map(|(figure, colour)| Some(((*figure)?, colour)));
        let bars: Vec<(f64, &str)> = bars.collect();
        let lines = wrapped(&row.name);
        let height = (bars.len() * BAR).max(lines.len() * LINE);
        let top = y + (height - lines.len() * LINE) / 2 + 12;
        for (number, line) in lines.iter().enumerate() {
            svg.text(LEFT - 10, top + number * LINE, "text-anchor=\"end\"", line);
        }
        let end = y + height;
        y += (height - bars.len() * BAR) / 2;
        for (figure, colour) in bars {
            let length = (figure / most * LONGEST).max(1.0);
            let place = format_args!("x=\"{LEFT}\" y=\"{y}\"");
            let size = format_args!("width=\"{length:.1}\" height=\"{}\"", BAR - 2);
            svg.shape("rect", format_args!("{place} {size} fill=\"{colour}\""));
            let after = format_args!("{:.1}", length + LEFT as f64 + 5.0);
            svg.text(after, y + BAR - 4, "font-size=\"11\"", &figure.to_string());
            y += BAR;
        }
        y = end + 12;
    }
    svg.finish(WIDTH, y, "font-size=\"13\"")
}

#[test]
fn plots_are_those_of_the_tables() {
    let text =
        fs::read_to_string(workspace().join("docs/benchmarks/README.md")).expect("the page of figures");
    let page = fs::read_to_string(workspace().join("book/src/performance.md")).expect("the page");
    for (name, title, heading, unit) in PLOTS {
        let (columns, rows) = table(&text, heading, unit);
        assert!(rows.len() >= 2, "docs/benchmarks has no table {heading} with {unit}");
        let drawn = draw(title, &columns, &rows);
        let picture = workspace().join("book/src/pictures").join(name).with_extension("svg");
        if std::env::var_os("FERROCE_WRITE_PAGES").is_some() {
            fs::write(&picture, &drawn).expect("the picture can be written");
        }
        let there = fs::read_to_string(&picture).unwrap_or_default();
        assert!(
            drawn == there,
            "{name}.svg isn't the table of docs/benchmarks: run this test with FERROCE_WRITE_PAGES=1"
        );
        assert!(page.contains(&format!("pictures/{name}.svg")), "performance.md doesn't show {name}.svg");
    }
}

#[test]
fn a_long_name_has_several_lines() {
    assert_eq!(wrapped("atomics"), ["atomics"]);
    let lines = wrapped("8-byte writes, half a round trip, memory that can be shared");
    assert_eq!(lines, ["8-byte writes, half a round trip, memory", "that can be shared"]);
}

#[test]
fn a_cell_is_a_figure_in_its_unit_or_none() {
    assert_eq!(figure("0.51 µs (ib_send_lat, 2.8 ×)", "µs"), Some(0.51));
    assert_eq!(figure("72 Gbit/s", "µs"), None);
    assert_eq!(figure("–", "µs"), None);
}
