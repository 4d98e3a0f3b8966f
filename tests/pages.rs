//! Whether runs take fresh pages. What glibc does depends on what the process did before and on the thread, so this is a process of its own whose first thread
//! runs: there is no harness.

mod common;

use common::spec::unpadded;
use std::io::Write;
use std::process::Command;
use tract_core::internal::*;
use tract_deconv::filter::PackedFilter;
use tract_deconv::plan::{Plan, PlanOptions};
use tract_deconv::spec::Direction;

fn main() -> TractResult<()> {
    if !cfg!(all(target_os = "linux", target_env = "gnu")) {
        let _ = writeln!(std::io::stderr(), "pages: skipped, not on glibc");
        return Ok(());
    }
    if std::env::var_os(GLIBC_IS_TOLD).is_some() {
        // 92 MB, which then are mapped at every run
        let Faults { first, others, told, .. } = faults(&[300], 0)?;
        ensure!(others > 3 * first, "{told}, though the environment says what to keep");
        return Ok(());
    }
    if std::env::var_os(WITH_OTHERS).is_some() {
        // 3 MB, and the 58 MB that a forward convolution of tract's would copy between runs: mapped one by one, unless glibc is told
        let Faults { first, others, told, .. } = faults(&[54], 58_000_000)?;
        ensure!(others < first, "{told}");
        return Ok(());
    }
    // 17 MB, which glibc keeps by itself once it has met a larger block, and those that it would map one by one
    for sides in [&[128][..], &[200], &[300], &[200, 310, 230]] {
        let Faults { first, others, pages, told } = faults(sides, 0)?;
        ensure!(first < pages + pages / 2, "{told}");
        // where pages are huge, an output has few. A small block may take a place; were every run's pages fresh, there would be ten times as many
        ensure!(others < 2 * first, "{told}");
    }
    for (variable, value) in [(GLIBC_IS_TOLD, (128 << 10).to_string()), (WITH_OTHERS, String::new())] {
        let status = Command::new(std::env::current_exe()?).env(variable, value).status()?;
        ensure!(status.success(), "with {variable}: {status}");
    }
    Ok(())
}

/// Makes this program a process that has met no larger outputs, in which others allocate as well.
const WITH_OTHERS: &str = "TRACT_DECONV_TEST_WITH_OTHERS";

/// The environment that makes glibc keep its ways.
const GLIBC_IS_TOLD: &str = "MALLOC_TRIM_THRESHOLD_";

/// Fresh pages of runs.
struct Faults {
    /// Of the first two of each layer.
    first: usize,
    /// Of twenty more.
    others: usize,
    /// Those of an output of each layer, if they are not huge.
    pages: usize,
    told: String,
}

/// The pages of an output should be those of an earlier one, which was dropped: no run makes the process larger, or waits for fresh pages. Layers of several sizes
/// take turns, and small blocks that stay are allocated in between, as well as one of so many bytes that does not.
fn faults(sides: &[usize], between: usize) -> TractResult<Faults> {
    let layers: Vec<Layer> = sides.iter().map(|side| Layer::new(*side)).collect::<TractResult<_>>()?;
    let pages: usize = layers.iter().map(|layer| layer.pages).sum();
    let mut kept: Vec<Vec<u8>> = vec![];
    let mut run = |runs: usize| -> TractResult<usize> {
        let before = page_faults()?;
        for (run, layer) in (0..runs).flat_map(|run| layers.iter().map(move |layer| (run, layer))) {
            layer.run()?;
            std::hint::black_box(vec![1u8; between]);
            kept.push(vec![1; 48 + 500 * (run % 8)]);
        }
        Ok(page_faults()? - before)
    };
    let (first, others) = (run(2)?, run(20)?);
    let told =
        format!("pages: {sides:?}, {first} fresh ones in 2 runs, {others} in 20 more, outputs have {pages} together");
    let _ = writeln!(std::io::stderr(), "{told}");
    Ok(Faults { first, others, pages, told })
}

/// A layer whose output is as large as 256 times a square's area.
struct Layer {
    plan: Plan,
    packed: PackedFilter,
    input: Tensor,
    pages: usize,
}

impl Layer {
    fn new(side: usize) -> TractResult<Layer> {
        let (input, filter) = ([1, 32, side, side], [32, 64, 2, 2]);
        let spec = unpadded(Direction::Transposed, (32, 64, 1), &[2, 2], 2);
        let plan = Plan::new(&spec, &input, None, f32::datum_type(), &PlanOptions::default())?;
        let filter = Tensor::zero::<f32>(&filter)?.into_arc_tensor();
        let packed = PackedFilter::pack(&spec, &plan.filter_layout(), &filter)?;
        Ok(Layer { plan, packed, input: Tensor::zero::<f32>(&input)?, pages: 4 * 64 * 4 * side * side / 4096 })
    }

    fn run(&self) -> TractResult<Tensor> {
        self.plan.run(&self.input, &self.packed, None)
    }
}

/// Pages that the process touched first, so far.
fn page_faults() -> TractResult<usize> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // the tenth field; the second is a name in parentheses
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    Ok(fields.nth(7).context("the field of page faults is missing")?.parse()?)
}
