//! Formats figures: tables, times, sizes.

use crate::compare::Difference;
use comfy_table::{CellAlignment, ContentArrangement, Table, TableComponent, presets};

/// Returns a table. All columns but the first `text` ones are right-aligned.
pub fn table(header: &[&str], text: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_style(TableComponent::HeaderLines, '─').set_style(TableComponent::MiddleHeaderIntersections, '─');
    table.set_header(header.to_vec());
    for column in table.column_iter_mut().skip(text) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Returns the table of errors per output.
pub fn differences(differences: &[Difference]) -> Table {
    let mut table = table(&["output", "worst absolute", "worst relative", "tolerance", ""], 1);
    for d in differences {
        let (absolute, relative) = match &d.mismatch {
            Some(_) => ("-".into(), "-".into()),
            None => (format!("{:.2e}", d.absolute), format!("{:.2e}", d.relative)),
        };
        let verdict = match (&d.mismatch, d.passes()) {
            (Some(why), _) => why.clone(),
            (None, true) if d.relative > d.tolerance => "ok, all near zero".into(),
            (None, true) => "ok".into(),
            (None, false) => "too far".into(),
        };
        table.add_row([d.name.clone(), absolute, relative, format!("{:.0e}", d.tolerance), verdict]);
    }
    table
}

/// Describes the worst of several comparisons.
pub fn worst(differences: &[Difference]) -> String {
    if let Some(d) = differences.iter().find(|d| d.mismatch.is_some()) {
        return format!("output {}: {}", d.name, d.mismatch.clone().unwrap_or_default());
    }
    match differences.iter().max_by(|a, b| a.severity().total_cmp(&b.severity())) {
        Some(d) if d.passes() && d.relative > d.tolerance => {
            format!("output {}: {:.1e}, all of it is near zero", d.name, d.absolute)
        }
        Some(d) => format!("output {}: {:.1e} of its scale (tolerance {:.0e})", d.name, d.relative, d.tolerance),
        None => "no output".into(),
    }
}

/// Formats milliseconds with three significant digits or more.
pub fn ms(milliseconds: f64) -> String {
    match milliseconds {
        x if x >= 100.0 => format!("{x:.0} ms"),
        x if x >= 10.0 => format!("{x:.1} ms"),
        x if x >= 1.0 => format!("{x:.2} ms"),
        x => format!("{x:.3} ms"),
    }
}

/// Formats bytes in binary units.
pub fn bytes(bytes: u64) -> String {
    let x = bytes as f64;
    match x {
        x if x >= 1e9 => format!("{:.2} GiB", x / 1024f64.powi(3)),
        x if x >= 1e6 => format!("{:.1} MiB", x / 1024f64.powi(2)),
        x if x >= 1e3 => format!("{:.1} KiB", x / 1024.0),
        _ => format!("{bytes} B"),
    }
}

/// Formats a count with a decimal unit.
pub fn count(count: u64) -> String {
    let x = count as f64;
    match x {
        x if x >= 1e9 => format!("{:.2} G", x / 1e9),
        x if x >= 1e6 => format!("{:.2} M", x / 1e6),
        x if x >= 1e3 => format!("{:.1} k", x / 1e3),
        _ => format!("{count}"),
    }
}
