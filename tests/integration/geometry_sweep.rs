//! The phase arithmetic of every small 1-D geometry against the definition, as sets of (input, tap,
//! output) triples.

use tract_core::internal::*;
use tract_deconv::internals::AxisPhases;
use tract_deconv::spec::{Axis, DataFormat, Direction, Problem};

/// Returns the triples by the definition: for each output its (input, tap) pairs, in ascending
/// order.
fn definition(axis: &Axis, direction: Direction) -> Vec<Vec<(usize, usize)>> {
    let mut meeting = vec![vec![]; axis.output];
    let (s, d, p) = (axis.stride as i64, axis.dilation as i64, axis.pad_begin);
    for k in 0..axis.kernel {
        match direction {
            Direction::Transposed => {
                for i in 0..axis.input {
                    let o = i as i64 * s + k as i64 * d - p;
                    if (0..axis.output as i64).contains(&o) {
                        meeting[o as usize].push((i, k));
                    }
                }
            }
            Direction::Forward => {
                for (o, pairs) in meeting.iter_mut().enumerate() {
                    let i = o as i64 * s + k as i64 * d - p;
                    if (0..axis.input as i64).contains(&i) {
                        pairs.push((i as usize, k));
                    }
                }
            }
        }
    }
    for pairs in &mut meeting {
        pairs.sort_unstable();
    }
    meeting
}

/// Returns the triples as the phases enumerate them. Exactly one (grid position, phase) must reach
/// each output.
fn by_phases(axis: &Axis, phases: &AxisPhases) -> Vec<Vec<(usize, usize)>> {
    let mut meeting: Vec<Option<Vec<(usize, usize)>>> = vec![None; axis.output];
    for u in 0..phases.grid {
        for r in phases.phases_inside(u) {
            let o = (phases.out_step * u + r) as i64;
            assert!((0..axis.output as i64).contains(&o), "{axis:?}: grid {u}, phase {r} writes {o}");
            let mut pairs = vec![];
            for tap in &phases.phases[r].taps {
                let i = (u * phases.in_step) as i64 + tap.shift;
                let inside = phases.inside(tap.shift).contains(&u);
                assert_eq!(inside, (0..axis.input as i64).contains(&i), "{axis:?}: inside({}) at grid {u}", tap.shift);
                if inside {
                    pairs.push((i as usize, tap.k));
                }
            }
            pairs.sort_unstable();
            let slot = &mut meeting[o as usize];
            assert!(slot.is_none(), "{axis:?}: output {o} is written twice");
            *slot = Some(pairs);
        }
    }
    meeting
        .into_iter()
        .enumerate()
        .map(|(o, pairs)| pairs.unwrap_or_else(|| panic!("{axis:?}: output {o} is not written")))
        .collect()
}

/// Compares runs of grid positions with single positions.
fn runs_and_outputs(axis: &Axis, phases: &AxisPhases) {
    let reads = |u: usize, shift: i64| (0..axis.input as i64).contains(&((u * phases.in_step) as i64 + shift));
    let (mut pairs, mut inside) = (0, 0);
    for (r, phase) in phases.phases.iter().enumerate() {
        let mut next = 0;
        for (grid, taps) in phases.runs(r) {
            assert!(grid.start == next && grid.start < grid.end, "{axis:?}: run {grid:?} after {next}");
            next = grid.end;
            for (ix, tap) in phase.taps.iter().enumerate() {
                let read = grid.clone().filter(|u| reads(*u, tap.shift)).count();
                assert!(read == 0 || read == grid.len(), "{axis:?}: run {grid:?} has an end of the input inside");
                assert_eq!(read > 0, taps.contains(&ix), "{axis:?}: run {grid:?}, tap {ix} of phase {r}");
                (pairs, inside) = (pairs + grid.len(), inside + read);
            }
        }
        assert_eq!(next, phases.grid, "{axis:?}: runs of phase {r}");
        // For more than one run, the taps extend from the first to the last that reads anywhere in
        // the range.
        let reading = |ix: &usize| (0..phases.grid).any(|u| reads(u, phase.taps[*ix].shift));
        let reading: Vec<usize> = (0..phase.taps.len()).filter(reading).collect();
        let taps = phases.taps_inside(r, &(0..phases.grid));
        let ends = reading.first().map(|first| *first..reading[reading.len() - 1] + 1);
        assert!(ends.map_or(taps.is_empty(), |ends| ends == taps), "{axis:?}: {taps:?} of phase {r} for {reading:?}");
    }
    let share = if pairs == 0 { 0.0 } else { inside as f64 / pairs as f64 };
    assert!((phases.share_inside() - share).abs() < 1e-12, "{axis:?}: {} for {share}", phases.share_inside());
    let mut written = 0;
    for u in 0..phases.grid {
        let outputs = phases.outputs(&(u..u + 1));
        assert_eq!(outputs, written..written + phases.phases_inside(u).len(), "{axis:?}: outputs of grid position {u}");
        written = outputs.end;
    }
    assert_eq!((written, phases.outputs(&(0..phases.grid))), (axis.output, 0..axis.output), "{axis:?}: outputs");
}

fn check(axis: &Axis, direction: Direction) {
    let phases = AxisPhases::new(axis, direction);
    assert_eq!(phases.phases.iter().map(|p| p.taps.len()).sum::<usize>(), axis.kernel, "{axis:?}: taps");
    assert!(phases.phases.iter().all(|p| p.taps.is_sorted_by_key(|t| t.k)), "{axis:?}: order of taps");
    let mut shifts: Vec<i64> = phases.phases.iter().flat_map(|p| &p.taps).map(|t| t.shift).collect();
    shifts.sort_unstable();
    shifts.dedup();
    assert_eq!(phases.shifts(), shifts, "{axis:?}: shifts");
    let outside = |(u, shift): (usize, i64)| !(0..axis.input as i64).contains(&((u * phases.in_step) as i64 + shift));
    let near_ends = phases.phases.iter().flat_map(|p| (0..phases.grid).map(move |u| (u, p)));
    let near_ends = near_ends.filter(|(u, p)| p.taps.iter().any(|tap| outside((*u, tap.shift)))).count();
    assert_eq!(phases.near_ends(), near_ends, "{axis:?}: near the ends");
    runs_and_outputs(axis, &phases);
    let expected = definition(axis, direction);
    assert_eq!(by_phases(axis, &phases), expected, "{axis:?} {direction:?}");
    let problem = Problem {
        direction,
        data_format: DataFormat::Ncx,
        batch: 2,
        group: 3,
        group_in: 5,
        group_out: 7,
        axes: tvec!(axis.clone()),
    };
    let pairs: usize = expected.iter().map(|pairs| pairs.len()).sum();
    assert_eq!(problem.multiply_adds(), 2 * 3 * 5 * 7 * pairs as u64, "{axis:?}: multiply-adds");
}

/// Calls `visit` for every (input, kernel, stride, dilation). Each of them starts from one.
fn sizes(mut visit: impl FnMut(usize, usize, usize, usize)) {
    for (input, kernel) in (1..=6).flat_map(|x| (1..=6).map(move |k| (x, k))) {
        for (stride, dilation) in (1..=4).flat_map(|s| (1..=4).map(move |d| (s, d))) {
            visit(input, kernel, stride, dilation);
        }
    }
}

#[test]
fn transposed_with_pads_and_output_padding() {
    let mut checked = 0;
    sizes(|input, kernel, stride, dilation| {
        let uncropped = (stride * (input - 1) + (kernel - 1) * dilation + 1) as i64;
        for output_padding in 0..stride.max(dilation) as i64 {
            for (begin, end) in (0..=5).flat_map(|b| (0..=5).map(move |e| (b, e))) {
                let output = uncropped + output_padding - begin - end;
                if output >= 1 {
                    let output = output as usize;
                    check(&Axis { input, output, kernel, stride, dilation, pad_begin: begin }, Direction::Transposed);
                    checked += 1;
                }
            }
        }
    });
    assert!(checked > 40_000, "only {checked} geometries are legal");
}

#[test]
fn transposed_with_negative_pads_and_any_output_size() {
    sizes(|input, kernel, stride, dilation| {
        for (pad_begin, output) in (-5..=0).flat_map(|p| [1, 2, 3, 7, 23, 40].map(move |o| (p, o))) {
            check(&Axis { input, output, kernel, stride, dilation, pad_begin }, Direction::Transposed);
        }
        // The crop begins beyond all that the kernel reaches, so the output is the bias alone.
        let beyond = (stride * (input - 1) + (kernel - 1) * dilation + 1) as i64;
        for output in [1, 4, 9] {
            let axis = Axis { input, output, kernel, stride, dilation, pad_begin: beyond };
            assert!(definition(&axis, Direction::Transposed).iter().all(|pairs| pairs.is_empty()));
            check(&axis, Direction::Transposed);
        }
    });
}

#[test]
fn forward() {
    let mut checked = 0;
    sizes(|input, kernel, stride, dilation| {
        for (begin, end) in (-2..=5).flat_map(|b| (-2..=5).map(move |e| (b, e))) {
            let room = input as i64 + begin + end - ((kernel - 1) * dilation + 1) as i64;
            if room >= 0 {
                let output = room as usize / stride + 1;
                check(&Axis { input, output, kernel, stride, dilation, pad_begin: begin }, Direction::Forward);
                checked += 1;
            }
        }
    });
    assert!(checked > 8_000, "only {checked} geometries are legal");
}

/// The limit is not a tuning constant, as the layout of filters depends on it.
#[test]
fn phases_are_listed_up_to_strides_of_1024() {
    for (stride, transposed) in [(1, true), (1024, true), (1025, false)] {
        let axis = Axis { input: 3, output: 3, kernel: 2, stride, dilation: 1, pad_begin: 0 };
        assert_eq!(AxisPhases::is_compact(&axis, Direction::Transposed), transposed, "stride {stride}");
        assert!(AxisPhases::is_compact(&axis, Direction::Forward), "stride {stride}");
    }
}

#[test]
fn an_axis_that_is_not_there_has_one_output() {
    let unit = AxisPhases::unit();
    assert_eq!((unit.grid, unit.input, unit.output, unit.in_step, unit.out_step), (1, 1, 1, 1, 1));
    assert_eq!(unit.runs(0), [(0..1, 0..1)]);
}
