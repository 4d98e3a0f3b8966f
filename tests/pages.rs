//! Checks whether runs take fresh pages.
//!
//! An allocator's behaviour depends on the thread and on what the process did before. So each part
//! is a process of its own, whose first thread runs the layers. Page faults are counted on Linux.
//! Elsewhere the tests count as ignored.

mod common;

use common::spec::unpadded;
use libtest_mimic::{Arguments, Failed, Trial};
use std::io::Write;
use std::process::{Command, ExitCode};
use tract_core::internal::*;
use tract_deconv::PackedFilter;
use tract_deconv::memory::{idle_bytes, release};
use tract_deconv::spec::Direction;
use tract_deconv::{Plan, PlanOptions};

/// The knob of the pool's size.
const POOL_BYTES: &str = "TRACT_DECONV_POOL_BYTES";

/// The maximum number of fresh pages of twenty runs, for small blocks that are not in the pool.
const FEW: usize = 20;

/// The variable that makes this program run one of [`PARTS`] on its first thread.
const PART: &str = "TRACT_DECONV_TEST_PART";

/// The parts, with the size of the pool where it is not the default.
type Part = (&'static str, Option<&'static str>, fn() -> TractResult<()>);
const PARTS: [Part; 4] = [
    ("outputs_reuse_pages", None, outputs_reuse_pages),
    ("released_blocks_are_not_resident", None, released_blocks_are_not_resident),
    ("a_pool_of_nothing_keeps_nothing", Some("0"), nothing_is_kept),
    ("a_pool_too_small_for_an_output_keeps_nothing", Some("92000000"), nothing_is_kept),
];

fn main() -> TractResult<ExitCode> {
    if let Ok(name) = std::env::var(PART) {
        let (_, _, run) = PARTS.iter().find(|(part, ..)| *part == name).context("no such part")?;
        run()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut arguments = Arguments::from_args();
    // They would take memory and cores from each other.
    arguments.test_threads = Some(1);
    let trials = PARTS.map(|(name, pool, _)| {
        Trial::test(name, move || process(name, pool)).with_ignored_flag(!cfg!(target_os = "linux"))
    });
    Ok(libtest_mimic::run(&arguments, trials.into()).exit_code())
}

fn process(part: &str, pool: Option<&str>) -> Result<(), Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    let status = command.env(PART, part).env_remove(POOL_BYTES).envs(pool.map(|bytes| (POOL_BYTES, bytes))).status()?;
    if status.success() { Ok(()) } else { Err(format!("{POOL_BYTES}={pool:?}: {status}").into()) }
}

/// 92 MB exceed the pool, so they are mapped at every run, or as the allocator decides.
fn nothing_is_kept() -> TractResult<()> {
    let Faults { told, idle, .. } = faults(&[300])?;
    ensure!(idle == 0, "{told}");
    Ok(())
}

fn outputs_reuse_pages() -> TractResult<()> {
    // 17 MB to 98 MB.
    for sides in [&[128][..], &[200], &[300], &[200, 310, 230]] {
        let Faults { first, others, pages, idle, told } = faults(sides)?;
        // With huge pages, an output has few of them.
        ensure!(first < pages + pages / 2, "{told}");
        ensure!(others <= FEW, "{told}");
        ensure!(idle == pages * PAGE, "{told}");
        release();
        ensure!(idle_bytes() == 0, "{told}");
    }
    Ok(())
}

/// Blocks kept for later outputs are resident memory until they are released.
fn released_blocks_are_not_resident() -> TractResult<()> {
    let layer = Layer::new(300)?;
    let bytes = layer.pages * PAGE;
    layer.run()?;
    let kept = resident()?;
    release();
    let left = resident()?;
    let told = format!("pages: {kept} bytes are resident after a run, {left} when the output's {bytes} are released");
    let _ = writeln!(std::io::stderr(), "{told}");
    ensure!(left + bytes * 9 / 10 < kept, "{told}");
    Ok(())
}

/// The fresh pages of runs.
struct Faults {
    /// Of the first two runs of each layer.
    first: usize,
    /// Of twenty further runs.
    others: usize,
    /// The pages of one output of each layer, if they are not huge.
    pages: usize,
    /// The bytes kept for later outputs, after the last run.
    idle: usize,
    told: String,
}

/// Counts the fresh pages of layers of several sizes that alternate.
///
/// The pages of an output should be those of an earlier, dropped output. Blocks of other sizes are
/// allocated in between, of which small ones stay.
fn faults(sides: &[usize]) -> TractResult<Faults> {
    let layers: Vec<Layer> = sides.iter().map(|side| Layer::new(*side)).collect::<TractResult<_>>()?;
    let pages: usize = layers.iter().map(|layer| layer.pages).sum();
    let mut kept: Vec<Vec<u8>> = vec![];
    let mut run = |runs: usize| -> TractResult<usize> {
        let mut faults = 0;
        for (run, layer) in (0..runs).flat_map(|run| layers.iter().map(move |layer| (run, layer))) {
            let before = page_faults()?;
            layer.run()?;
            faults += page_faults()? - before;
            std::hint::black_box(vec![1u8; 58_000_000]);
            kept.push(vec![1; 48 + 500 * (run % 8)]);
        }
        Ok(faults)
    };
    let (first, others) = (run(2)?, run(20)?);
    let idle = idle_bytes();
    let told = format!(
        "pages: {sides:?}, {first} fresh ones in 2 runs, {others} in 20 more, outputs have {pages} together; {idle} bytes wait"
    );
    let _ = writeln!(std::io::stderr(), "{told}");
    Ok(Faults { first, others, pages, idle, told })
}

const PAGE: usize = 4096;

/// A layer whose output has 256 elements per position of a square.
struct Layer {
    built: tract_deconv::Layer,
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
        Ok(Layer {
            built: tract_deconv::Layer::new(plan),
            packed,
            input: Tensor::zero::<f32>(&input)?,
            pages: 4 * 64 * 4 * side * side / PAGE,
        })
    }

    fn run(&self) -> TractResult<Tensor> {
        self.built.run(&self.input, &self.packed, None)
    }
}

/// Returns the number of pages that the process has touched for the first time so far.
fn page_faults() -> TractResult<usize> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // It is the tenth field. The second one is a name in parentheses.
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    Ok(fields.nth(7).context("the field of page faults is missing")?.parse()?)
}

/// Returns the resident memory of the process in bytes, without mapped files.
fn resident() -> TractResult<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("RssAnon is missing")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<usize>()? << 10)
}
