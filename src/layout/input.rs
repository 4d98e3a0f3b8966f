//! The input of a layer: one tensor, or several that hold its channels one after the other.

use crate::element::Element;
use crate::layout::strides_of;
use crate::parallel::{parallel, threads};
use crate::spec::Problem;
use tract_core::internal::*;

/// Tasks per thread that join tensors.
const TASKS: usize = 4;

/// Bytes from which on a copy is divided among tasks.
const SMALLEST_TASK: usize = 16 << 10;

/// Estimated cost of copying 16 bytes, in vector multiply-adds.
pub(crate) const SIXTEEN_BYTES: u64 = 4;

/// Some consecutive channels of all images, in a tensor.
#[derive(Clone, Copy)]
pub(crate) struct InputPart<'a, E> {
    data: &'a [E],
    /// The index of the first channel.
    first: usize,
    channels: usize,
}

impl<'a, E> InputPart<'a, E> {
    /// Lists the tensors of an input, each with the number of its channels.
    ///
    /// # Errors
    /// The tensors are not the problem's input.
    pub fn list(problem: &Problem, tensors: &[(&'a [E], usize)]) -> TractResult<TVec<InputPart<'a, E>>> {
        let all = problem.group * problem.group_in;
        let elements: usize = problem.input_shape().iter().product();
        let mut first = 0;
        let mut parts = tvec!();
        for (data, channels) in tensors {
            ensure!(
                data.len().checked_mul(all) == elements.checked_mul(*channels),
                "input: elements={}, {elements} of {all} channels are needed, of which it has {channels}",
                data.len()
            );
            parts.push(InputPart { data, first, channels: *channels });
            first += channels;
        }
        ensure!(first == all, "input: channels={first}, {all} are needed");
        Ok(parts)
    }
}

/// The input of a layer.
///
/// It is in one tensor. Channels-first input may also be in several.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a, E> {
    parts: &'a [InputPart<'a, E>],
    /// Elements between channels.
    channel: usize,
    /// Elements between positions of an image, times the positions.
    positions: usize,
}

impl<'a, E: Element> Input<'a, E> {
    /// Describes a problem's input, which is in `parts`.
    pub fn new(problem: &Problem, parts: &'a [InputPart<'a, E>]) -> Input<'a, E> {
        let shape = problem.input_shape();
        let channel = strides_of(&shape)[problem.data_format.c_axis(shape.len())];
        Input { parts, channel, positions: problem.axes.iter().map(|axis| axis.input).product() }
    }

    /// Returns the only tensor, in the problem's input shape.
    ///
    /// # Errors
    /// There are several.
    pub fn whole(self) -> TractResult<&'a [E]> {
        match self.parts {
            [part] => Ok(part.data),
            parts => bail!("input: tensors={}, the strategy reads one", parts.len()),
        }
    }

    /// Returns some channels of an image.
    pub fn channels(self, image: usize, first: usize, count: usize) -> Channels<'a, E> {
        Channels { input: self, image, first, count }
    }

    /// Writes the joint tensor of channels-first input.
    ///
    /// # Errors
    /// `to` has another size.
    pub fn join(self, to: &mut [E]) -> TractResult<()> {
        let Input { parts, positions, .. } = self;
        let image = positions * parts.iter().map(|part| part.channels).sum::<usize>();
        let elements: usize = parts.iter().map(|part| part.data.len()).sum();
        ensure!(to.len() == elements, "input: elements={elements}, the joint tensor has {}", to.len());
        if to.is_empty() {
            return Ok(());
        }
        let cost = (size_of_val(to) as u64 / 16).saturating_mul(SIXTEEN_BYTES);
        let at_once = to.len().div_ceil(TASKS * threads(cost)).max(SMALLEST_TASK / size_of::<E>());
        let mut tasks: Vec<_> = to.chunks_mut(at_once).enumerate().collect();
        parallel(&mut tasks, cost, &|(task, to)| {
            let (mut at, mut to) = (*task * at_once, &mut **to);
            while !to.is_empty() {
                let (n, within) = (at / image, at % image);
                let part = part_of(parts, within / positions);
                let plane = within - part.first * positions;
                let from = &part.data[n * part.channels * positions..][plane..part.channels * positions];
                let (copied, rest) = to.split_at_mut(from.len().min(to.len()));
                copied.copy_from_slice(&from[..copied.len()]);
                (at, to) = (at + copied.len(), rest);
            }
            Ok(())
        })
    }
}

/// Returns the part that has a channel.
fn part_of<'p, 'a, E>(parts: &'p [InputPart<'a, E>], channel: usize) -> &'p InputPart<'a, E> {
    // A part without channels begins where the next one does.
    parts.iter().rfind(|part| part.first <= channel).unwrap_or(&parts[0])
}

/// Consecutive channels of an image.
#[derive(Clone, Copy)]
pub(crate) struct Channels<'a, E> {
    input: Input<'a, E>,
    image: usize,
    first: usize,
    /// The number of channels.
    pub count: usize,
}

impl<'a, E: Element> Channels<'a, E> {
    /// Elements between channels of one tensor.
    pub fn stride(&self) -> usize {
        self.input.channel
    }

    /// Returns the elements of a tensor from one of the channels on, and the number of channels from
    /// this one on that the tensor has.
    pub fn from(&self, channel: usize) -> (&'a [E], usize) {
        let Input { parts, channel: stride, positions } = self.input;
        let channel = self.first + channel;
        let part = part_of(parts, channel);
        let at = self.image * part.channels * positions + (channel - part.first) * stride;
        (&part.data[at..], part.first + part.channels - channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::DataFormat;
    use crate::problem::{Axis, Direction};

    fn problem(batch: usize, channels: usize, sizes: &[usize]) -> Problem {
        let axis = |size: &usize| Axis { input: *size, output: *size, kernel: 1, stride: 1, dilation: 1, pad_begin: 0 };
        Problem {
            direction: Direction::Forward,
            data_format: DataFormat::Ncx,
            batch,
            group: 1,
            group_in: channels,
            group_out: 1,
            axes: sizes.iter().map(axis).collect(),
        }
    }

    /// The element of an image, a channel and a position.
    fn element(n: usize, c: usize, at: usize) -> f32 {
        (n * 10_000 + c * 1000 + at) as f32
    }

    fn tensor(images: usize, channels: std::ops::Range<usize>, positions: usize) -> Vec<f32> {
        let planes = (0..images).flat_map(|n| channels.clone().map(move |c| (n, c)));
        planes.flat_map(|(n, c)| (0..positions).map(move |at| element(n, c, at))).collect()
    }

    #[test]
    fn channels_are_found_in_their_tensors() -> TractResult<()> {
        for counts in [vec![5], vec![1, 3, 2], vec![4, 0, 1], vec![0, 2, 2, 0], vec![1; 9]] {
            let (images, all) = (3, counts.iter().sum::<usize>());
            let problem = problem(images, all, &[2, 7]);
            let mut first = 0;
            let tensors: Vec<Vec<f32>> = counts
                .iter()
                .map(|count| {
                    first += count;
                    tensor(images, first - count..first, 14)
                })
                .collect();
            let tensors: Vec<(&[f32], usize)> =
                tensors.iter().map(|data| &**data).zip(counts.iter().copied()).collect();
            let parts = InputPart::list(&problem, &tensors)?;
            let input = Input::new(&problem, &parts);
            assert_eq!(input.whole().is_ok(), counts.len() == 1);
            for (n, c) in (0..images).flat_map(|n| (0..all).map(move |c| (n, c))) {
                let channels = input.channels(n, c / 2, all - c / 2);
                let (from, together) = channels.from(c - c / 2);
                assert_eq!(&from[..14], &tensor(1, 0..1, 14).iter().map(|x| x + element(n, c, 0)).collect::<Vec<_>>());
                assert!(together >= 1 && together <= all - c);
                assert_eq!(from[(together - 1) * channels.stride()], element(n, c + together - 1, 0));
            }
            let mut joint = vec![f32::NAN; images * all * 14];
            input.join(&mut joint)?;
            assert_eq!(joint, tensor(images, 0..all, 14));
            assert!(input.join(&mut joint[1..]).is_err());
        }
        Ok(())
    }

    #[test]
    fn large_tensors_are_joined_in_tasks() -> TractResult<()> {
        let problem = problem(2, 5, &[10_000]);
        let (a, b) = (tensor(2, 0..2, 10_000), tensor(2, 2..5, 10_000));
        let parts = InputPart::list(&problem, &[(&*a, 2), (&*b, 3)])?;
        let mut joint = vec![f32::NAN; 100_000];
        Input::new(&problem, &parts).join(&mut joint)?;
        assert_eq!(joint, tensor(2, 0..5, 10_000));
        Ok(())
    }

    #[test]
    fn tensors_that_are_not_the_input_are_refused() {
        let problem = problem(2, 5, &[3]);
        let data = [0f32; 60];
        let refused: [&[(&[f32], usize)]; 4] =
            [&[(&data[..12], 2)], &[(&data[..12], 2), (&data[..24], 4)], &[(&data[..29], 5)], &[]];
        for tensors in refused {
            let error = InputPart::list(&problem, tensors).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with("input: "), "{error}");
        }
        assert!(InputPart::list(&problem, &[(&data[..12], 2), (&data[..18], 3)]).is_ok());
    }
}
