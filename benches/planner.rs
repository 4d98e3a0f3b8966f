//! The quality of the planner's choices: random layers under each strategy that compares costs, on
//! one thread.
//!
//! `cargo bench --bench planner -- 160 7` draws 160 layers from seed 7. It compares the results of
//! the strategies, prints each one's time next to its estimate, and then how much slower the choice
//! is than the best, in the mean and at worst. Further arguments, as in `-- 160 7 nxc`, select the
//! layers:
//!
//! - `nxc`: channels-last data, half of it in narrow groups;
//! - `forward`: forward convolutions;
//! - `depthwise`: one input channel per group;
//! - `forward pointwise`: one tap.
//!
//! The constants of `src/estimate/cost.rs` come from such runs.

mod common;

use common::{Layer, Ready, compare};
use std::time::{Duration, Instant};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{PlanOptions, Strategy};

const COMPARED: [Strategy; 8] = [
    Strategy::DepthwiseRows,
    Strategy::DepthwisePixels,
    Strategy::OverlapAdd,
    Strategy::Col2im,
    Strategy::Amx,
    Strategy::Winograd,
    Strategy::DirectChannels,
    Strategy::DirectPositions,
];

/// The time of a vector multiply-add in seconds, the unit of the estimates, on a 3.66 GHz Zen 4.
const SLOT: f64 = 0.273e-9;

/// The kind of layer to draw.
struct Kind {
    data_format: DataFormat,
    direction: Direction,
    depthwise: bool,
    pointwise: bool,
}

/// Strategies whose estimate exceeds the choice's by this factor are not run.
const HOPELESS: u64 = 10;

struct Draw(u64);

impl Draw {
    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        values[(self.0 >> 33) as usize % values.len()]
    }

    /// Draws a layer as in common networks, or none if the combination is not worth timing.
    fn layer(&mut self, kind: &Kind) -> TractResult<Option<Layer>> {
        let Kind { data_format, direction, depthwise, pointwise } = *kind;
        let rank = self.of(&[1usize, 2, 2, 2, 2, 3]);
        let group = self.of(&[1usize, 1, 1, 1, 2, 4, 8]);
        let inputs = self.of(&[3usize, 8, 16, 20, 24, 32, 48, 64, 96, 128, 256, 512]);
        let outputs = self.of(&[1usize, 2, 3, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 256, 512]);
        let (group, inputs, outputs) = match data_format {
            _ if depthwise => {
                let group = [8usize, 16, 20, 32, 48, 64, 96, 128, 144, 192, 256, 384, 512, 960];
                (self.of(&group), 1, self.of(&[1usize, 1, 1, 1, 1, 2, 4]))
            }
            DataFormat::Nxc if self.of(&[true, false]) => {
                let narrow = [1usize, 2, 3, 4, 5, 8, 12];
                (self.of(&[4usize, 8, 16, 32, 64]), self.of(&narrow), self.of(&narrow))
            }
            _ => (group, inputs, outputs),
        };
        let (kernel, stride, dilation) = self.of(&[
            (2usize, 2usize, 1usize),
            (2, 2, 1),
            (3, 2, 1),
            (4, 2, 1),
            (4, 2, 1),
            (3, 1, 1),
            (5, 2, 1),
            (4, 4, 1),
            (8, 4, 1),
            (16, 8, 1),
            (3, 1, 2),
            (3, 3, 1),
            (1, 1, 1),
            (5, 1, 1),
            (7, 1, 1),
            (9, 4, 1),
            (6, 3, 1),
        ]);
        let (kernel, stride, dilation) = match direction {
            _ if pointwise => (1, 1, 1),
            Direction::Transposed => (kernel, stride, dilation),
            Direction::Forward => self.of(&[
                (1, 1, 1),
                (1, 1, 1),
                (1, 2, 1),
                (3, 1, 1),
                (3, 1, 1),
                (3, 2, 1),
                (5, 1, 1),
                (7, 1, 1),
                (7, 2, 1),
                (3, 1, 2),
            ]),
        };
        let size = match rank {
            1 => self.of(&[50usize, 100, 300, 1000, 4000, 12800]),
            2 => self.of(&[4usize, 7, 8, 12, 14, 16, 20, 28, 32, 40, 56, 64, 80, 100, 128, 160, 224]),
            _ => self.of(&[4usize, 8, 12, 16, 24, 32]),
        };
        if kernel > [16, 9, 5][rank - 1] {
            return Ok(None);
        }
        // Some audio networks do not convolve the time axis.
        let leaves_rows = depthwise && rank == 2 && self.of(&[true, false, false, false]);
        let sized = |size: usize| -> TVec<usize> {
            (0..rank).map(|axis| if leaves_rows && axis == 0 { 1 } else { size }).collect()
        };
        let pads: TVec<i64> = sized(kernel)
            .iter()
            .zip(sized(stride))
            .map(|(kernel, stride)| {
                let reach = (kernel - 1) * dilation;
                match direction {
                    Direction::Transposed => (reach + 1).saturating_sub(stride) as i64 / 2,
                    Direction::Forward => reach as i64 / 2,
                }
            })
            .collect();
        let spec = DeconvSpec {
            direction,
            data_format,
            filter_format: FilterFormat::Iox,
            in_channels: inputs * group,
            out_channels: outputs * group,
            group,
            kernel: sized(kernel),
            strides: sized(stride),
            dilations: tvec!(dilation; rank),
            padding: Padding::Explicit { begin: pads.clone(), end: pads },
            output_padding: tvec!(0; rank),
        };
        let shape = spec.data_format.shape(1, spec.in_channels, std::iter::repeat_n(size, rank));
        let problem = spec.problem(&shape, None)?;
        let least = if depthwise { 50_000 } else { 1_000_000 };
        let worth = (least..=1_500_000_000).contains(&problem.multiply_adds());
        if !worth || problem.output_shape().iter().product::<usize>() > 8_000_000 {
            return Ok(None);
        }
        Layer::new(spec, &shape).map(Some)
    }
}

/// Returns the best time of a few runs of each plan, in seconds. The plans take turns.
///
/// The run before each timed run is not counted, so every strategy finds the caches in its own
/// state.
fn times(layer: &Layer, plans: &[Ready]) -> TractResult<Vec<f64>> {
    let mut best = vec![f64::MAX; plans.len()];
    let begin = Instant::now();
    let mut rounds = 0;
    while rounds < 3 || (begin.elapsed() < Duration::from_millis(200) && rounds < 60) {
        for (ready, best) in plans.iter().zip(&mut best) {
            drop(layer.run(ready)?);
            let begin = Instant::now();
            let output = layer.run(ready)?;
            *best = best.min(begin.elapsed().as_secs_f64());
            drop(output);
        }
        rounds += 1;
    }
    Ok(best)
}

fn main() -> TractResult<()> {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let (count, seed) = (numbers.first().copied().unwrap_or(40), numbers.get(1).copied().unwrap_or(7));
    let says = |word: &str| std::env::args().any(|argument| argument == word);
    let data_format = if says("nxc") { DataFormat::Nxc } else { DataFormat::Ncx };
    let direction = if says("forward") { Direction::Forward } else { Direction::Transposed };
    let kind = Kind { data_format, direction, depthwise: says("depthwise"), pointwise: says("pointwise") };
    let mut draw = Draw(seed);
    let mut losses = vec![];
    while (losses.len() as u64) < count {
        let Some(layer) = draw.layer(&kind)? else { continue };
        let Ready { plan: choice, .. } = layer.plan(&PlanOptions::default())?;
        let (chosen, cost) = (choice.strategy(), choice.cost());
        let forced = |strategy| layer.plan(&PlanOptions::default().with_strategy(strategy));
        let plans: Vec<Ready> = COMPARED
            .into_iter()
            .filter_map(|strategy| forced(strategy).ok())
            .filter(|ready| ready.plan.cost().zip(cost).is_some_and(|(a, b)| a < b.saturating_mul(HOPELESS)))
            .collect();
        let [first, others @ ..] = &plans[..] else { continue };
        let Some(choice) =
            plans.iter().position(|ready| ready.plan.strategy() == chosen).filter(|_| !others.is_empty())
        else {
            continue;
        };
        let expected = layer.run(first)?;
        for other in others {
            compare(&format!("{:?} by {}", layer.spec, other.plan.strategy()), &layer.run(other)?, &expected)?;
        }
        let times = times(&layer, &plans)?;
        let loss = times[choice] / times.iter().copied().fold(f64::MAX, f64::min);
        let each = plans.iter().zip(&times).map(|(ready, time)| {
            let estimate = ready.plan.cost().unwrap_or(0) as f64 * SLOT / time;
            format!("{} {:.0} us, estimate {estimate:.2} of it", ready.plan.strategy(), time * 1e6)
        });
        let DeconvSpec { in_channels, out_channels, group, kernel, strides, dilations, .. } = &layer.spec;
        println!(
            "{loss:.2} {in_channels} to {out_channels} in {group}, kernel {kernel:?} strides {strides:?} dilations {dilations:?} on {:?}: {chosen} of {}",
            layer.input.shape(),
            each.format("; ")
        );
        losses.push(loss);
    }
    let mean = (losses.iter().map(|loss| loss.ln()).sum::<f64>() / losses.len().max(1) as f64).exp();
    println!(
        "the choice takes {mean:.3} of the best strategy's time in the mean, {:.2} at worst",
        losses.iter().copied().fold(1.0, f64::max)
    );
    Ok(())
}
