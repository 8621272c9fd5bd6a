//! A replay as one page of HTML that needs nothing else.

use super::report::{Bins, PolicyLine, Report, share};
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plotters::prelude::*;

const STYLE: &str = "\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
table { border-collapse: collapse; margin: .75rem 0; } th, td { padding: .25rem .75rem .25rem 0; text-align: left; }
th { border-bottom: 1px solid #9aa5b1; font-weight: 600; } td.n, th.n { text-align: right; }
svg { width: 100%; height: auto; } code { font-size: .85em; } .note { background: #fff6dd; padding: .5rem .75rem; }";

const PLOT: (u32, u32) = (960, 300);

/// Policies have these in turn; what is seen of one is also said in its table.
const COLOURS: [RGBColor; 6] = [
    RGBColor(204, 51, 51),
    RGBColor(230, 137, 0),
    RGBColor(117, 79, 191),
    RGBColor(0, 134, 127),
    RGBColor(190, 60, 140),
    RGBColor(90, 100, 110),
];

/// The whole page.
pub fn page(file: &str, reports: &[Report]) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Replay of " (file) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "What " (file) " would have made of the requests in the log" }
                @for report in reports { (one(report)) }
            }
        }
    }
    .into_string()
}

fn one(report: &Report) -> Markup {
    let Report { requests, admitted, rejected, exempt, .. } = report;
    html! {
        h2 { (report.place) @if let Some(version) = &report.version { ", version " (version) } }
        p {
            (requests) " requests of " (report.logs.join(", ")) ", from " (report.first) " to " (report.last) ": "
            (admitted) " admitted (" (share(*admitted, *requests)) ")"
            @if *exempt > 0 { ", " (exempt) " of them exempt" }
            ", " strong { (rejected) " rejected (" (share(*rejected, *requests)) ")" } "."
        }
        @for note in &report.notes { p.note { (note) } }
        (plotted("Requests a second", requests_plot(&report.timeline)))
        (plotted("Rejected, or in shadow, by policy, a second", policies_plot(&report.timeline)))
        table {
            tr {
                th { "policy" } th { "enforce" } th.n { "requests" } th.n { "rejected" } th.n { "in shadow" } th.n { "keys" }
                th.n { "of them rejected" }
            }
            @for policy in &report.policies {
                tr {
                    td { (policy.name) } td { (policy.enforce) } td.n { (policy.requests) }
                    td.n { (policy.rejected) " (" (share(policy.rejected, policy.requests)) ")" }
                    td.n { (policy.shadow_denied) " (" (share(policy.shadow_denied, policy.requests)) ")" }
                    td.n { (policy.keys) } td.n { (policy.keys_rejected) }
                }
            }
        }
        @for policy in &report.policies { (of_policy(policy)) }
        h3 { "Identities" }
        table {
            tr { th { "identity" } th { "what was found" } }
            @for identity in &report.identities {
                tr {
                    td { (identity.name) }
                    td { @for (name, count) in &identity.results { (name) " " (count) " " } }
                }
            }
        }
    }
}

fn of_policy(policy: &PolicyLine) -> Markup {
    html! {
        h3 { (policy.name) }
        p { (policy.meaning) }
        p { @for (name, count) in &policy.outcomes { (name) " " (count) " " } }
        @if !policy.most_rejected.is_empty() {
            table {
                tr { th { "key" } th.n { "requests" } th.n { "rejected" } th { "first rejected" } th { "at" } }
                @for key in &policy.most_rejected {
                    tr {
                        td { code { (key.key) } } td.n { (key.requests) } td.n { (key.rejected) }
                        td { (key.first_rejected) } td { (key.place) }
                    }
                }
            }
        }
    }
}

fn plotted(title: &str, svg: Result<String, Box<dyn std::error::Error>>) -> Markup {
    html! {
        h3 { (title) }
        @match svg {
            Ok(svg) => (PreEscaped(svg)),
            Err(error) => p.note { "There is no plot: " (error) },
        }
    }
}

fn requests_plot(bins: &Bins) -> Result<String, Box<dyn std::error::Error>> {
    let lines = [("requests", &bins.requests, RGBColor(60, 120, 200)), ("rejected", &bins.rejected, COLOURS[0])];
    plot(bins, lines.into_iter())
}

fn policies_plot(bins: &Bins) -> Result<String, Box<dyn std::error::Error>> {
    let colours = COLOURS.into_iter().cycle();
    plot(bins, bins.by_policy.iter().zip(colours).map(|((name, counts), colour)| (name.as_str(), counts, colour)))
}

/// Areas over time, those behind first.
fn plot<'a>(
    bins: &Bins,
    lines: impl Iterator<Item = (&'a str, &'a Vec<u64>, RGBColor)> + Clone,
) -> Result<String, Box<dyn std::error::Error>> {
    let per_second = |count: u64| count as f64 / bins.seconds;
    let most = lines.clone().flat_map(|(_, counts, _)| counts.iter().copied()).max().unwrap_or(0);
    let end = bins.start + bins.seconds * bins.requests.len() as f64;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, PLOT).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(60)
            .build_cartesian_2d(bins.start..end, 0.0..per_second(most.max(1)) * 1.05)?;
        let label = |at: &f64| label(*at, end - bins.start);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .x_labels(6)
            .y_labels(5)
            .x_label_formatter(&label)
            .draw()?;
        for (name, counts, colour) in lines {
            // Each bin is level.
            let steps = counts.iter().enumerate().flat_map(|(place, count)| {
                let from = bins.start + bins.seconds * place as f64;
                [(from, per_second(*count)), (from + bins.seconds, per_second(*count))]
            });
            chart
                .draw_series(AreaSeries::new(steps, 0.0, colour.mix(0.25)).border_style(colour))?
                .label(name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        }
        let place = SeriesLabelPosition::UpperLeft;
        chart.configure_series_labels().position(place).background_style(WHITE.mix(0.8)).draw()?;
        area.present()?;
    }
    Ok(svg)
}

/// The time of day, with the date where the whole is long.
fn label(at: f64, span: f64) -> String {
    let form = if span > 2.0 * 86_400.0 { "%m-%d %H:%M" } else { "%H:%M:%S" };
    Timestamp::from_second(at as i64).map_or_else(|_| String::new(), |at| at.strftime(form).to_string())
}
