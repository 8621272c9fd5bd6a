//! The picture of it.

use serde_json::Value;
use std::fmt::Write;

const NAMES: usize = 190;
const WIDTH: usize = 400;
const BAR: usize = 14;
const GAP: usize = 6;
const HEAD: usize = 34;

/// Bars for the requests a second in parts of what no filter gives, of all cases with one worker and more than one
/// connection that go as fast as they can. It has no colours but those of bars, so that it is readable on any ground.
pub fn bars(cases: &[Value]) -> String {
    let shown = |case: &&Value| case["workers"] == 1 && case["connections"] != 1 && case["sent_per_second"].is_null();
    let (mut body, mut y) = (String::new(), 0);
    for case in cases.iter().filter(shown) {
        let how = if case["in_front_of_an_upstream"] == true { "in front of an upstream" } else { "answered by Envoy" };
        y += HEAD;
        line(
            &mut body,
            0,
            y - 10,
            "start",
            &format!("<tspan font-weight=\"bold\">{how}, {} connections</tspan>", case["connections"]),
        );
        for row in case["rows"].as_array().into_iter().flatten() {
            let ratio = row["of_no_filter"].as_f64().unwrap_or(0.0);
            let length = (ratio * WIDTH as f64).round();
            let name = row["name"].as_str().unwrap_or("");
            line(&mut body, NAMES - 8, y + BAR - 3, "end", name);
            let _ = writeln!(body, r##"<rect x="{NAMES}" y="{y}" width="{length}" height="{BAR}" fill="#3b82c4"/>"##);
            line(&mut body, NAMES + length as usize + 6, y + BAR - 3, "start", &format!("{ratio:.2}"));
            y += BAR + GAP;
        }
    }
    let (width, height) = (NAMES + WIDTH + 60, y + GAP);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\" \
         fill=\"#808080\">\n<title>Requests a second in parts of what Envoy gives without a filter</title>\n{body}</svg>\n"
    )
}

fn line(body: &mut String, x: usize, y: usize, anchor: &str, text: &str) {
    let _ = writeln!(body, r#"<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>"#);
}
