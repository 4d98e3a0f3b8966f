//! Whether runs take fresh pages. What glibc does depends on what the process did before and on the thread, so this is a process of its own whose first thread
//! runs: there is no harness.

mod common;

use common::spec::unpadded;
use std::io::Write;
use tract_core::internal::*;
use tract_deconv::filter::PackedFilter;
use tract_deconv::plan::{Plan, PlanOptions};
use tract_deconv::spec::Direction;

fn main() -> TractResult<()> {
    if !cfg!(all(target_os = "linux", target_env = "gnu")) {
        let _ = writeln!(std::io::stderr(), "pages: skipped, not on glibc");
        return Ok(());
    }
    // 17 MB, which glibc keeps by itself once it has met a larger block, and those that it would map one by one
    [128, 200, 300].into_iter().try_for_each(an_output_takes_the_pages_of_the_one_before)
}

/// The pages of an output are those of the one before, which was dropped: no run makes the process larger, or waits for fresh pages.
fn an_output_takes_the_pages_of_the_one_before(side: usize) -> TractResult<()> {
    let (input, filter, pages) = ([1, 32, side, side], [32, 64, 2, 2], 4 * 64 * 4 * side * side / 4096);
    let spec = unpadded(Direction::Transposed, (32, 64, 1), &[2, 2], 2);
    let plan = Plan::new(&spec, &input, None, f32::datum_type(), &PlanOptions::default())?;
    let packed = PackedFilter::pack(&spec, &plan.filter_layout(), &Tensor::zero::<f32>(&filter)?.into_arc_tensor())?;
    let input = Tensor::zero::<f32>(&input)?;
    let run = |runs: usize| -> TractResult<usize> {
        let before = page_faults()?;
        for _ in 0..runs {
            plan.run(&spec, &input, &packed, None)?;
        }
        Ok(page_faults()? - before)
    };
    let (first, others) = (run(2)?, run(20)?);
    let told = format!("pages: {first} fresh ones in 2 runs, {others} in 20 more, an output has {pages}");
    let _ = writeln!(std::io::stderr(), "{told}");
    ensure!(first < pages + pages / 2, "{told}");
    // where pages are huge, an output has few
    ensure!(others < first.min(pages) / 2, "{told}");
    Ok(())
}

/// Pages that the process touched first, so far.
fn page_faults() -> TractResult<usize> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // the tenth field; the second is a name in parentheses
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    Ok(fields.nth(7).context("the field of page faults is missing")?.parse()?)
}
