//! Every small 1-D geometry: the phase arithmetic against the definition, as sets of (input, tap, output) triples.

use tract_core::internal::*;
use tract_deconv::geometry::AxisPhases;
use tract_deconv::spec::{Axis, DataFormat, Direction, Problem};

/// Triples by the definition: for each output the (input, tap) pairs that meet there, in ascending order.
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

/// The same triples as the phases enumerate them; every output cell must be reached by one (grid, phase) exactly.
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

/// Calls `visit` for every (input, kernel, stride, dilation), each list from one.
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
        // crops that begin beyond everything the kernel reaches: the bias alone
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
