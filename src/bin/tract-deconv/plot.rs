//! Draws the distributions of the engines' latencies as SVG.

use crate::args::Engine;
use crate::latency::{Summary, quantile};
use plotters::prelude::*;
use std::path::Path;
use tract_core::internal::*;

const BINS: usize = 150;
/// The top of the vertical axis. The peaks reach 1, and the legend is above them.
const TOP: f64 = 1.3;

/// Draws one histogram per engine over a common axis.
///
/// Each is scaled to its own peak and marks its median.
pub fn draw(path: &Path, title: &str, engines: &[(Engine, Vec<f64>)]) -> TractResult<()> {
    let svg = picture(title, engines).map_err(|e| format_err!("drawing: {e}"))?;
    std::fs::write(path, svg).with_context(|| format!("writing {}", path.display()))
}

fn picture(title: &str, engines: &[(Engine, Vec<f64>)]) -> Result<String, Box<dyn std::error::Error>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (900, 420)).into_drawing_area();
        root.fill(&WHITE)?;
        let (low, high) = range(engines);
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 18))
            .margin(16)
            .x_label_area_size(40)
            .y_label_area_size(50)
            .build_cartesian_2d(low..high, 0f64..TOP)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .x_desc("latency of one run, ms (up to the slowest engine's 97th percentile)")
            .y_desc("runs, of the engine's peak")
            .y_label_formatter(&|y| if *y < 1.01 { format!("{y:.1}") } else { String::new() })
            .x_label_formatter(&|x| format!("{x:.*}", decimals(high - low)))
            .draw()?;
        for (engine, samples) in engines {
            let color = match engine {
                Engine::Stock => RGBColor(200, 80, 40),
                Engine::Deconv => RGBColor(110, 160, 70),
                Engine::Exact => RGBColor(120, 120, 120),
                Engine::Plugin => RGBColor(20, 100, 180),
            };
            let width = (high - low) / BINS as f64;
            let bins = histogram(samples, low, width);
            let bars = bins.iter().enumerate().filter(|(_, height)| **height > 0.0).map(|(ix, height)| {
                let left = low + ix as f64 * width;
                Rectangle::new([(left, 0.0), (left + width, *height)], color.mix(0.55).filled())
            });
            chart.draw_series(bars)?;
            if let Some(summary) = Summary::of(samples) {
                let line = LineSeries::new([(summary.median, 0.0), (summary.median, 1.05)], color.stroke_width(2));
                let label = format!("{}: median {:.3} ms, {} runs", engine.title(), summary.median, summary.runs);
                chart
                    .draw_series(line)?
                    .label(label)
                    .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.mix(0.7).filled()));
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        root.present()?;
    }
    Ok(svg)
}

/// Returns the range from the fastest run to the slowest engine's 97th percentile, with a margin.
///
/// A few late runs would otherwise squeeze all others.
fn range(engines: &[(Engine, Vec<f64>)]) -> (f64, f64) {
    let mut low = f64::INFINITY;
    let mut high = f64::NEG_INFINITY;
    for (_, samples) in engines {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        low = low.min(sorted.first().copied().unwrap_or(f64::INFINITY));
        high = high.max(quantile(&sorted, 0.97).unwrap_or(f64::NEG_INFINITY));
    }
    if !(low.is_finite() && high.is_finite()) {
        return (0.0, 1.0);
    }
    let margin = ((high - low) * 0.05).max(high.abs() * 1e-3).max(1e-6);
    ((low - margin).max(0.0), high + margin)
}

fn histogram(samples: &[f64], low: f64, width: f64) -> Vec<f64> {
    let mut bins = vec![0.0f64; BINS];
    for sample in samples {
        if let Some(bin) = bins.get_mut(((sample - low) / width) as usize) {
            *bin += 1.0;
        }
    }
    let peak = bins.iter().copied().fold(1.0, f64::max);
    bins.iter().map(|count| count / peak).collect()
}

fn decimals(span: f64) -> usize {
    match span {
        s if s >= 20.0 => 0,
        s if s >= 2.0 => 1,
        s if s >= 0.2 => 2,
        s if s >= 0.02 => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_below_the_cut_is_in_a_bin() {
        let engines = [(Engine::Stock, vec![4.0, 5.0, 5.0, 6.0]), (Engine::Plugin, vec![1.0, 1.0, 1.5])];
        let (low, high) = range(&engines);
        assert!(low < 1.0 && high > 5.9);
        let width = (high - low) / BINS as f64;
        assert_eq!(histogram(&engines[1].1, low, width).iter().filter(|b| **b > 0.0).count(), 2);
        assert_eq!(histogram(&engines[0].1, low, width).iter().copied().fold(0.0, f64::max), 1.0);
    }

    #[test]
    fn both_engines_are_drawn() {
        let engines = [(Engine::Stock, vec![4.0; 9]), (Engine::Plugin, vec![1.0; 9])];
        let svg = picture("m", &engines).unwrap();
        assert!(svg.contains("stock tract: median 4.000 ms") && svg.contains("plugin: median 1.000 ms"));
        assert!(picture("no samples", &[(Engine::Plugin, vec![])]).is_ok());
    }
}
