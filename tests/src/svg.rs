//! The one writer of pictures: the book's plots, the curves of benchmarks, and the messages of a capture.

use std::fmt::{Display, Write as _};

/// The elements of a picture, in the order in which they are drawn.
#[derive(Default)]
pub struct Svg(String);

impl Svg {
    /// Adds an element without content.
    pub fn shape(&mut self, name: &str, attributes: impl Display) {
        self.raw(format_args!("<{name} {attributes}/>"));
    }

    /// Adds a text; `attributes` may be empty.
    pub fn text(&mut self, x: impl Display, y: impl Display, attributes: &str, content: &str) {
        let space = if attributes.is_empty() { "" } else { " " };
        let content = content.replace('&', "&amp;").replace('<', "&lt;");
        self.raw(format_args!("<text x=\"{x}\" y=\"{y}\"{space}{attributes}>{content}</text>"));
    }

    /// Adds a line of SVG.
    pub fn raw(&mut self, line: impl Display) {
        // Writing to a string doesn't fail.
        let _ = writeln!(self.0, "{line}");
    }

    /// The picture on a white sheet; `style` has the attributes of all texts.
    #[must_use]
    pub fn finish(self, width: impl Display, height: impl Display, style: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" font-family=\"sans-serif\" \
             {style}>\n<rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#fff\"/>\n{}</svg>\n",
            self.0
        )
    }
}
