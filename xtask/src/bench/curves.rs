//! Curves over message sizes, drawn as SVG: both axes are logarithmic.

use super::report::Row;
use ferroce_tests::svg::Svg;
use serde::{Deserialize, Serialize};

/// A picture: some curves in one unit.
#[derive(Serialize, Deserialize)]
pub struct Picture {
    /// Its file, without the ending.
    pub name: String,
    /// The heading.
    pub title: String,
    /// Of the values.
    pub unit: String,
    /// In the order of the legend.
    pub curves: Vec<Curve>,
}

/// One figure over sizes.
#[derive(Serialize, Deserialize)]
pub struct Curve {
    /// As the legend has it.
    pub what: String,
    /// By rising size.
    pub points: Vec<Point>,
}

/// The figure for one size.
#[derive(Serialize, Deserialize)]
pub struct Point {
    /// Of a message.
    pub bytes: u32,
    /// What was measured.
    #[serde(flatten)]
    pub figure: Row,
}

const COLOURS: [&str; 9] =
    ["#b3541e", "#d98b4f", "#7c2d12", "#e0b040", "#2f5d8a", "#6d9dc5", "#3c8067", "#9aa9b8", "#555f6b"];
/// Where the axes meet, and how long they are.
const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
const WIDE: f64 = 470.0;
const HIGH: f64 = 320.0;
/// Where the legend begins.
const LEGEND: f64 = LEFT + WIDE + 20.0;
const WIDTH: f64 = 880.0;
const HEIGHT: f64 = TOP + HIGH + 60.0;

/// A logarithmic axis: its ends, and where they lie.
struct Axis {
    values: (f64, f64),
    places: (f64, f64),
}

impl Axis {
    fn place(&self, value: f64) -> f64 {
        let [least, most, value] = [self.values.0, self.values.1, value].map(f64::ln);
        let part = if most > least { (value - least) / (most - least) } else { 0.0 };
        self.places.0 + part * (self.places.1 - self.places.0)
    }
}

impl Picture {
    /// Draws it.
    pub fn draw(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let sizes = || points().map(|point| f64::from(point.bytes));
        let values = || points().map(|point| point.figure.median()).filter(|value| *value > 0.0);
        let least = |of: &mut dyn Iterator<Item = f64>| of.fold(f64::INFINITY, f64::min);
        let most = |of: &mut dyn Iterator<Item = f64>| of.fold(0.0, f64::max);
        let decade = |value: f64, round: fn(f64) -> f64| 10_f64.powf(round(value.log10()));
        let x = Axis { values: (least(&mut sizes()), most(&mut sizes())), places: (LEFT, LEFT + WIDE) };
        let y = Axis {
            values: (decade(least(&mut values()), f64::floor), decade(most(&mut values()), f64::ceil)),
            places: (TOP + HIGH, TOP),
        };
        let mut svg = Svg::default();
        svg.text(20, 26, "font-size=\"14\" font-weight=\"bold\"", &self.title);
        self.draw_grid(&mut svg, &x, &y);
        for (number, (curve, colour)) in self.curves.iter().zip(COLOURS).enumerate() {
            draw_curve(&mut svg, (&x, &y), curve, colour);
            let at = TOP + 10.0 + 22.0 * number as f64;
            svg.shape(
                "rect",
                format_args!("x=\"{LEGEND}\" y=\"{at:.0}\" width=\"14\" height=\"4\" fill=\"{colour}\""),
            );
            text(&mut svg, LEGEND + 22.0, at + 6.0, "start", &curve.what);
        }
        svg.finish(WIDTH, HEIGHT, "font-size=\"12\"")
    }

    /// The axes, with a line for each size and for each power of ten.
    fn draw_grid(&self, svg: &mut Svg, x: &Axis, y: &Axis) {
        let grid = |svg: &mut Svg, from: (f64, f64), to: (f64, f64)| {
            let ((x1, y1), (x2, y2)) = (from, to);
            let ends = format_args!("x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"");
            svg.shape("line", format_args!("{ends} stroke=\"#e3e7eb\""));
        };
        let mut sizes: Vec<u32> =
            self.curves.iter().flat_map(|curve| &curve.points).map(|point| point.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for size in sizes {
            let at = x.place(f64::from(size));
            grid(svg, (at, TOP), (at, TOP + HIGH));
            text(svg, at, TOP + HIGH + 18.0, "middle", &bytes(size));
        }
        let mut value = y.values.0;
        while value <= y.values.1 * 1.001 {
            let at = y.place(value);
            grid(svg, (LEFT, at), (LEFT + WIDE, at));
            text(svg, LEFT - 8.0, at + 4.0, "end", &number(value));
            value *= 10.0;
        }
        text(svg, LEFT, TOP + HIGH + 42.0, "start", &format!("message size; values in {}", self.unit));
    }

    /// Prints it as a table, in Markdown.
    pub fn print(&self) {
        println!("\n{}\n", self.title);
        let sizes: Vec<u32> = self
            .curves
            .first()
            .map(|curve| curve.points.iter().map(|point| point.bytes).collect())
            .unwrap_or_default();
        let heading: Vec<String> = sizes.iter().map(|size| bytes(*size)).collect();
        println!("| {} | {} |", self.unit, heading.join(" | "));
        println!("|---|{}", "---:|".repeat(sizes.len()));
        for curve in &self.curves {
            let figures: Vec<String> =
                curve.points.iter().map(|point| format!("{:.2}", point.figure.median())).collect();
            println!("| {} | {} |", curve.what, figures.join(" | "));
        }
    }
}

fn draw_curve(svg: &mut Svg, (x, y): (&Axis, &Axis), curve: &Curve, colour: &str) {
    let places: Vec<(f64, f64)> = curve
        .points
        .iter()
        .filter(|point| point.figure.median() > 0.0)
        .map(|point| (x.place(f64::from(point.bytes)), y.place(point.figure.median())))
        .collect();
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let path = path.join(" ");
    svg.shape(
        "polyline",
        format_args!("points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\""),
    );
    for (x, y) in places {
        svg.shape("circle", format_args!("cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\""));
    }
}

fn text(svg: &mut Svg, x: f64, y: f64, anchor: &str, what: &str) {
    svg.text(format_args!("{x:.1}"), format_args!("{y:.1}"), &format!("text-anchor=\"{anchor}\""), what);
}

/// A size as people write it.
fn bytes(size: u32) -> String {
    match size {
        0..1024 => format!("{size} B"),
        1024..1_048_576 => format!("{} KiB", size / 1024),
        _ => format!("{} MiB", size / 1_048_576),
    }
}

/// A power of ten as people write it.
fn number(value: f64) -> String {
    if value >= 0.999 { format!("{value:.0}") } else { format!("{value}") }
}

#[test]
fn a_curve_reaches_the_ends_of_both_axes() {
    let point = |bytes, value| {
        let mut figure = Row::default();
        figure.add(value);
        Point { bytes, figure }
    };
    let curve = Curve { what: "a < b".into(), points: vec![point(8, 0.1), point(8 << 20, 100.0)] };
    let (name, title, unit) = ("one".into(), "One".into(), "µs".into());
    let drawn = Picture { name, title, unit, curves: vec![curve] }.draw();
    let (right, bottom) = (LEFT + WIDE, TOP + HIGH);
    assert!(drawn.contains(&format!("points=\"{LEFT:.1},{bottom:.1} {right:.1},{TOP:.1}\"")), "{drawn}");
    assert!(drawn.contains("a &lt; b") && drawn.contains("8 MiB") && drawn.contains(">0.1<"), "{drawn}");
}
