//! The definition in exact integers, one product at a time. It shares no code with the crate.

use tract_deconv::spec::{DeconvSpec, Direction, FilterFormat, OutputShape, Padding, Problem, Side};

/// Returns the output size and the padding at the beginning of an axis by the README's rules, or
/// `None` if they forbid it.
pub fn axis(spec: &DeconvSpec, ax: usize, input: usize) -> Option<(i128, i128)> {
    let (x, k) = (input as i128, spec.kernel[ax] as i128);
    let (s, d) = (spec.strides[ax] as i128, spec.dilations[ax] as i128);
    let eff = (k - 1) * d + 1;
    let full = s * (x - 1) + eff + spec.output_padding[ax] as i128;
    let before = |total: i128, extra: &Side| match extra {
        Side::Begin => total - total / 2,
        Side::End => total / 2,
    };
    let (output, begin) = match (&spec.padding, spec.direction) {
        (Padding::Explicit { begin, end }, Direction::Transposed) => {
            (full - begin[ax] as i128 - end[ax] as i128, begin[ax] as i128)
        }
        (Padding::Explicit { begin, end }, Direction::Forward) => {
            let room = x + begin[ax] as i128 + end[ax] as i128 - eff;
            (if room < 0 { 0 } else { room / s + 1 }, begin[ax] as i128)
        }
        (Padding::SameForward { extra }, _) => {
            let output = (x + s - 1) / s;
            (output, before(((output - 1) * s + eff - x).max(0), extra))
        }
        (Padding::OutputShape { shape: OutputShape::Dims(dims) | OutputShape::Input(dims), extra }, _) => {
            let output = dims[ax].as_i64()? as i128;
            (output, before((full - output).max(0), extra))
        }
    };
    (output >= 1).then_some((output, begin))
}

/// Returns the element strides of `[N, C, X..]` or `[N, X.., C]`, as `(image, channel, spatial)`.
fn strides(shape: &[usize], c: usize) -> (usize, usize, Vec<usize>) {
    let at = |axis: usize| shape[axis + 1..].iter().product::<usize>();
    (at(0), at(c), (1..shape.len()).filter(|axis| *axis != c).map(at).collect())
}

/// Returns the index of weight `(g, ci, co, k..)`, with channels numbered within the group.
fn weight(spec: &DeconvSpec, g: usize, ci: usize, co: usize, k: &[usize]) -> usize {
    let tap = k.iter().zip(&spec.kernel).fold(0, |at, (k, size)| at * size + k);
    let taps: usize = spec.kernel.iter().product();
    let (i, o) = (spec.in_channels / spec.group, spec.out_channels / spec.group);
    match spec.filter_format {
        FilterFormat::Iox => ((g * i + ci) * o + co) * taps + tap,
        FilterFormat::Oix => (co * spec.in_channels + g * i + ci) * taps + tap,
        FilterFormat::Xio => (tap * spec.in_channels + g * i + ci) * o + co,
        FilterFormat::Xoi => (tap * o + co) * spec.in_channels + g * i + ci,
        FilterFormat::GroupedOix => ((g * o + co) * i + ci) * taps + tap,
    }
}

fn unflatten(mut flat: usize, sizes: &[usize]) -> Vec<usize> {
    let mut at = vec![0; sizes.len()];
    for (at, size) in at.iter_mut().zip(sizes).rev() {
        *at = flat % size;
        flat /= size;
    }
    at
}

/// Returns the output's shape and values, or `None` if the rules forbid it.
pub fn output(
    spec: &DeconvSpec,
    problem: &Problem,
    x: &[i64],
    w: &[i64],
    bias: Option<&[i64]>,
) -> Option<(Vec<usize>, Vec<i64>)> {
    let inputs: Vec<usize> = problem.axes.iter().map(|axis| axis.input).collect();
    let axes: Vec<(i128, i128)> =
        inputs.iter().enumerate().map(|(ax, input)| axis(spec, ax, *input)).collect::<Option<_>>()?;
    let outputs: Vec<usize> = axes.iter().map(|axis| axis.0 as usize).collect();
    let shape = |c: usize, spatial: &[usize]| spec.data_format.shape(problem.batch, c, spatial.iter().copied());
    let c_axis = spec.data_format.c_axis(inputs.len() + 2);
    let (x_shape, y_shape) = (shape(spec.in_channels, &inputs), shape(spec.out_channels, &outputs));
    let ((xn, xc, xs), (yn, yc, ys)) = (strides(&x_shape, c_axis), strides(&y_shape, c_axis));
    let mut y = vec![0i64; y_shape.iter().product()];
    let (gi, go) = (spec.in_channels / spec.group, spec.out_channels / spec.group);
    let (walked, reached) = match spec.direction {
        Direction::Transposed => (&inputs, &outputs),
        Direction::Forward => (&outputs, &inputs),
    };
    let taps: usize = spec.kernel.iter().product();
    for from in 0..walked.iter().product() {
        let from = unflatten(from, walked);
        for k in 0..taps {
            let k = unflatten(k, &spec.kernel);
            let to: Option<Vec<usize>> = (0..from.len())
                .map(|ax| {
                    let at = from[ax] as i128 * spec.strides[ax] as i128 + k[ax] as i128 * spec.dilations[ax] as i128;
                    usize::try_from(at - axes[ax].1).ok().filter(|at| *at < reached[ax])
                })
                .collect();
            let Some(to) = to else { continue };
            let (i, o) = match spec.direction {
                Direction::Transposed => (&from, &to),
                Direction::Forward => (&to, &from),
            };
            let offset = |at: &[usize], strides: &[usize]| at.iter().zip(strides).map(|(a, s)| a * s).sum::<usize>();
            let (i, o) = (offset(i, &xs), offset(o, &ys));
            for n in 0..problem.batch {
                for g in 0..spec.group {
                    for co in 0..go {
                        let to = &mut y[n * yn + (g * go + co) * yc + o];
                        for ci in 0..gi {
                            let a = x[n * xn + (g * gi + ci) * xc + i];
                            *to = to.wrapping_add(a.wrapping_mul(w[weight(spec, g, ci, co, &k)]));
                        }
                    }
                }
            }
        }
    }
    if let Some(bias) = bias {
        for n in 0..problem.batch {
            for (c, value) in bias.iter().enumerate() {
                for output in 0..outputs.iter().product() {
                    let o: usize = unflatten(output, &outputs).iter().zip(&ys).map(|(a, s)| a * s).sum();
                    let to = &mut y[n * yn + c * yc + o];
                    *to = to.wrapping_add(*value);
                }
            }
        }
    }
    Some((y_shape.to_vec(), y))
}
