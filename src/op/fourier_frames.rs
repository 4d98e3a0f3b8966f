//! Runs a windowed Fourier basis, frame by frame, on fast Fourier transforms.
//!
//! Forward, each output position is a frame: the window's products with the input are transformed.
//! Transposed, each input position is a frame: it is transformed back, and the window's products
//! are added to the output.

use super::fourier_basis::{FourierBasis, Row, is_self_conjugate};
use crate::memory::scratch::{F32, SPECTRA};
use crate::memory::{collected, reserved};
use crate::parallel::{parallel, threads};
use crate::problem::{Axis, Direction};
use crate::ranges::ceil_div;
use crate::{estimate::machine::Machine, formats::DataFormat};
use realfft::num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use tract_core::internal::*;

/// The most frames whose spectra are kept, so that channels-first data is read and written by whole
/// cache lines.
const FRAMES_AT_ONCE: usize = 16;

/// The most bytes of these spectra, so that they stay in L2.
const BYTES_AT_ONCE: usize = 256 << 10;

/// Tasks per thread.
const TASKS: usize = 2;

/// The fewest output positions of a task, relative to the taps. Frames that reach two tasks are
/// transformed in both.
const LEAST_POSITIONS: usize = 8;

/// The largest prime factor of the points. Transforms by larger ones go by way of two convolutions.
/// They take ten times as long, and err twice as much as a sum of products.
pub(super) const LARGEST_FACTOR: usize = 11;

/// Nanoseconds of a transform of `N` points on eight lanes, over `N·log2(N)`.
const POINT_NS: f64 = 0.2;

/// Nanoseconds per value that is windowed, copied or added on eight lanes.
const VALUE_NS: f64 = 0.6;

/// Nanoseconds per run.
const RUN_NS: f64 = 1000.0;

enum Fft {
    Forward(Arc<dyn RealToComplex<f32>>),
    Inverse(Arc<dyn ComplexToReal<f32>>),
}

/// Work on a block of spectra, with room for the transform itself and for a frame.
type OfFrames<'a> = &'a mut dyn FnMut(&mut [Complex<f32>], &mut [Complex<f32>], &mut [f32]) -> TractResult<()>;

/// A part of a frame's spectrum that a channel holds.
struct Channel {
    bin: usize,
    imaginary: bool,
    /// From the spectrum to the channel, or back.
    factor: f32,
}

/// A windowed Fourier basis with its transform.
pub(super) struct Transform {
    basis: FourierBasis,
    channels: Vec<Channel>,
    fft: Fft,
}

impl Transform {
    /// Plans the transform of a basis.
    ///
    /// The memory of a transform's tables is bounded by that of the basis' filter.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn new(basis: FourierBasis, direction: Direction) -> TractResult<Transform> {
        let points = basis.points;
        let channel = |row: &Row| match direction {
            // Zero times the real part is zero or NaN, as a sum of zeros times the inputs is.
            _ if row.is_null(points) => Channel { bin: row.bin, imaginary: false, factor: 0.0 },
            // A spectrum is a sum of products with cosines, less i times those with sines.
            Direction::Forward => {
                Channel { bin: row.bin, imaginary: row.sine, factor: if row.sine { -row.factor } else { row.factor } }
            }
            // Back, a bin counts twice, as its mirror image has the same real part.
            Direction::Transposed => {
                let share = if is_self_conjugate(row.bin, points) { 1.0 } else { 0.5 };
                let share = if row.sine { -share } else { share };
                Channel { bin: row.bin, imaginary: row.sine, factor: share * row.factor }
            }
        };
        let channels = collected("channels", basis.rows.iter().map(channel))?;
        let mut planner = RealFftPlanner::new();
        let fft = match direction {
            Direction::Forward => Fft::Forward(planner.plan_fft_forward(points)),
            Direction::Transposed => Fft::Inverse(planner.plan_fft_inverse(points)),
        };
        Ok(Transform { basis, channels, fft })
    }

    /// Returns the number of points.
    pub fn points(&self) -> usize {
        self.basis.points
    }

    fn taps(&self) -> usize {
        self.basis.window.len()
    }

    fn bins(&self) -> usize {
        self.basis.points / 2 + 1
    }

    /// Returns the elements from one spectrum of a block to the next: an odd number of cache lines,
    /// so that spectra do not compete for the same sets.
    fn pitch(&self) -> usize {
        const LINE: usize = 64 / size_of::<Complex<f32>>();
        (self.bins().div_ceil(LINE) | 1) * LINE
    }

    fn frames_at_once(&self) -> usize {
        (BYTES_AT_ONCE / (self.pitch() * size_of::<Complex<f32>>())).clamp(1, FRAMES_AT_ONCE)
    }

    fn scratch_len(&self) -> usize {
        match &self.fft {
            Fft::Forward(fft) => fft.get_scratch_len(),
            Fft::Inverse(fft) => fft.get_scratch_len(),
        }
    }

    /// Returns the bytes of working memory per thread.
    pub fn working_bytes(&self) -> usize {
        let complex = self.pitch() * self.frames_at_once() + self.scratch_len();
        let slices = self.channels.len() * size_of::<&mut [f32]>() * TASKS;
        complex * size_of::<Complex<f32>>() + self.points() * size_of::<f32>() + slices
    }

    /// Returns the estimated time of some frames with vectors of `lanes` elements.
    pub fn nanoseconds(&self, frames: usize, lanes: usize) -> f64 {
        let points = self.points() as f64;
        let values = (self.taps() + self.channels.len()) as f64;
        // The transforms have vectors of at most eight elements.
        let vectors = (8.0 / lanes.max(1) as f64).max(1.0);
        RUN_NS + frames as f64 * vectors * (POINT_NS * points * points.log2() + VALUE_NS * values)
    }

    /// Writes all of `to`. `axis` is that of the frames, and other spatial axes have one position.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn run(
        &self,
        axis: &Axis,
        data_format: DataFormat,
        bias: Option<&[f32]>,
        from: &[f32],
        to: &mut [f32],
    ) -> TractResult<()> {
        let frames = match &self.fft {
            Fft::Forward(_) => axis.output,
            Fft::Inverse(_) => axis.input,
        };
        let images = to.len().checked_div(axis.output).unwrap_or(0);
        let images = if matches!(self.fft, Fft::Forward(_)) { images / self.channels.len() } else { images };
        let cost = Machine::current().cost_of(self.nanoseconds(frames.saturating_mul(images), 8));
        let parts = match threads(cost) {
            1 => 1,
            threads => (TASKS * threads).div_ceil(images.max(1)),
        };
        let run = Frames { transform: self, axis, channels_first: data_format == DataFormat::Ncx, frames, bias, from };
        match &self.fft {
            Fft::Forward(fft) => run.spectra(&**fft, parts, cost, to),
            Fft::Inverse(fft) => run.signals(&**fft, parts, cost, to),
        }
    }
}

/// Returns whether a number has no prime factor above [`LARGEST_FACTOR`].
pub(super) fn has_small_factors(mut number: usize) -> bool {
    for factor in 2..=LARGEST_FACTOR {
        while number > 1 && number.is_multiple_of(factor) {
            number /= factor;
        }
    }
    number == 1
}

/// The operands of one run.
struct Frames<'a> {
    transform: &'a Transform,
    axis: &'a Axis,
    channels_first: bool,
    /// The frames of an image.
    frames: usize,
    bias: Option<&'a [f32]>,
    from: &'a [f32],
}

/// The channels of some frames of an image.
struct Spectra<'a> {
    image: usize,
    frames: Range<usize>,
    /// One slice per channel, or, of channels-last data, a single one.
    to: Vec<&'a mut [f32]>,
}

/// Some positions of an image's signal.
struct Signal<'a> {
    image: usize,
    first: usize,
    to: &'a mut [f32],
}

impl Frames<'_> {
    /// Returns the position of a frame's first tap, and the taps within positions `0..len`.
    fn taps(&self, frame: usize, first: usize, len: usize) -> (i64, Range<usize>) {
        // A problem's sizes are far below the range of i64.
        let begin = (frame * self.axis.stride) as i64 - self.axis.pad_begin - first as i64;
        let within = |at: i64| at.clamp(0, self.transform.taps() as i64) as usize;
        let taps = within(-begin)..within(len as i64 - begin);
        (begin, taps.start..taps.end.max(taps.start))
    }

    /// Forward: writes the channels of all frames.
    fn spectra(&self, fft: &dyn RealToComplex<f32>, parts: usize, cost: u64, to: &mut [f32]) -> TractResult<()> {
        let channels = self.transform.channels.len();
        let length = self.frames.div_ceil(parts).next_multiple_of(self.transform.frames_at_once());
        let mut tasks: Vec<Spectra> =
            reserved("tasks", to.len() / (self.frames * channels) * self.frames.div_ceil(length))?;
        for (image, to) in to.chunks_exact_mut(self.frames * channels).enumerate() {
            let first = tasks.len();
            for begin in (0..self.frames).step_by(length) {
                let frames = begin..self.frames.min(begin + length);
                tasks.push(Spectra {
                    image,
                    frames,
                    to: reserved("channels", if self.channels_first { channels } else { 1 })?,
                });
            }
            let tasks = &mut tasks[first..];
            if self.channels_first {
                for row in to.chunks_exact_mut(self.frames) {
                    tasks.iter_mut().zip(row.chunks_mut(length)).for_each(|(task, row)| task.to.push(row));
                }
            } else {
                tasks.iter_mut().zip(to.chunks_mut(length * channels)).for_each(|(task, to)| task.to.push(to));
            }
        }
        parallel(&mut tasks, cost, &|task| {
            self.with_buffers(&mut |block, scratch, frame| self.spectra_of(task, fft, block, scratch, frame))
        })
    }

    /// Calls `run` with room for a block of spectra, for the transform itself, and for a frame.
    fn with_buffers(&self, run: OfFrames) -> TractResult<()> {
        SPECTRA.lend(|spectra| {
            F32.lend(|reals| {
                let block = spectra.block.of(self.transform.pitch() * self.transform.frames_at_once())?;
                let scratch = spectra.row.of(self.transform.scratch_len())?;
                run(block, scratch, reals.row.of(self.transform.points())?)
            })
        })
    }

    fn spectra_of(
        &self,
        task: &mut Spectra,
        fft: &dyn RealToComplex<f32>,
        block: &mut [Complex<f32>],
        scratch: &mut [Complex<f32>],
        frame: &mut [f32],
    ) -> TractResult<()> {
        let transform = self.transform;
        let (bins, pitch, at_once) = (transform.bins(), transform.pitch(), transform.frames_at_once());
        let from = &self.from[task.image * self.axis.input..][..self.axis.input];
        let bias = |channel: usize| self.bias.map_or(0.0, |bias| bias[channel]);
        for first in task.frames.clone().step_by(at_once) {
            let count = at_once.min(task.frames.end - first);
            for (i, spectrum) in block.chunks_exact_mut(pitch).take(count).enumerate() {
                let (begin, taps) = self.taps(first + i, 0, from.len());
                frame[..taps.start].fill(0.0);
                frame[taps.end..].fill(0.0);
                if !taps.is_empty() {
                    let from = &from[(begin + taps.start as i64) as usize..][..taps.len()];
                    let window = &transform.basis.window[taps.clone()];
                    frame[taps.clone()].iter_mut().zip(from).zip(window).for_each(|((to, x), w)| *to = x * w);
                }
                let spectrum = &mut spectrum[..bins];
                fft.process_with_scratch(frame, spectrum, scratch).map_err(failed)?;
                // The first bin is the sum of all values.
                if !spectrum[0].re.is_finite() && !self.is_finite_frame(from, begin, taps) {
                    spectrum.fill(Complex::new(f32::NAN, f32::NAN));
                }
            }
            let at = first - task.frames.start;
            if self.channels_first {
                for ((c, channel), to) in transform.channels.iter().enumerate().zip(&mut task.to) {
                    let spectra = block[channel.bin..].iter().step_by(pitch);
                    let to = to[at..][..count].iter_mut().zip(spectra);
                    let bias = bias(c);
                    if channel.imaginary {
                        to.for_each(|(to, bin)| *to = bin.im * channel.factor + bias);
                    } else {
                        to.for_each(|(to, bin)| *to = bin.re * channel.factor + bias);
                    }
                }
            } else if let [to] = &mut task.to[..] {
                let channels = transform.channels.len();
                let to = to[at * channels..].chunks_exact_mut(channels).take(count);
                for (to, spectrum) in to.zip(block.chunks_exact(pitch)) {
                    for (c, (to, channel)) in to.iter_mut().zip(&transform.channels).enumerate() {
                        let bin = spectrum[channel.bin];
                        *to = (if channel.imaginary { bin.im } else { bin.re }) * channel.factor + bias(c);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether all values of a frame are finite. A fast transform has no products with
    /// weights that are zero, where a sum of products makes NaN of a value that is not.
    fn is_finite_frame(&self, from: &[f32], begin: i64, taps: Range<usize>) -> bool {
        let window = &self.transform.basis.window;
        taps.into_iter().all(|tap| (from[(begin + tap as i64) as usize] * window[tap]).is_finite())
    }

    /// As [`Frames::is_finite_frame`], for the channels of a frame.
    fn is_finite_spectrum(&self, image: usize, frame: usize) -> bool {
        let channels = self.transform.channels.len();
        let from = &self.from[image * channels * self.frames..][..channels * self.frames];
        let (first, step) = if self.channels_first { (frame, self.frames) } else { (frame * channels, 1) };
        from[first..].iter().step_by(step).take(channels).all(|value| value.is_finite())
    }

    /// Transposed: writes the signals of all images.
    ///
    /// The frames of each position are added in their order, however positions are divided.
    fn signals(&self, fft: &dyn ComplexToReal<f32>, parts: usize, cost: u64, to: &mut [f32]) -> TractResult<()> {
        let positions = self.axis.output;
        let length = positions.div_ceil(parts).max(LEAST_POSITIONS.saturating_mul(self.transform.taps()));
        let mut tasks: Vec<Signal> = reserved("tasks", to.len() / positions * positions.div_ceil(length))?;
        for (image, to) in to.chunks_exact_mut(positions).enumerate() {
            tasks.extend(to.chunks_mut(length).enumerate().map(|(i, to)| Signal { image, first: i * length, to }));
        }
        parallel(&mut tasks, cost, &|task| {
            self.with_buffers(&mut |block, scratch, frame| self.signal_of(task, fft, block, scratch, frame))
        })
    }

    fn signal_of(
        &self,
        task: &mut Signal,
        fft: &dyn ComplexToReal<f32>,
        block: &mut [Complex<f32>],
        scratch: &mut [Complex<f32>],
        frame: &mut [f32],
    ) -> TractResult<()> {
        let transform = self.transform;
        let (bins, pitch, at_once) = (transform.bins(), transform.pitch(), transform.frames_at_once());
        task.to.fill(self.bias.map_or(0.0, |bias| bias[0]));
        let reached = self.reaching(task.first, task.to.len());
        for first in reached.clone().step_by(at_once) {
            let count = at_once.min(reached.end - first);
            self.read_spectra(task.image, first, count, block);
            for (i, spectrum) in block.chunks_exact_mut(pitch).take(count).enumerate() {
                fft.process_with_scratch(&mut spectrum[..bins], frame, scratch).map_err(failed)?;
                if !are_finite(frame) && !self.is_finite_spectrum(task.image, first + i) {
                    frame.fill(f32::NAN);
                }
                let (begin, taps) = self.taps(first + i, task.first, task.to.len());
                if !taps.is_empty() {
                    let to = &mut task.to[(begin + taps.start as i64) as usize..][..taps.len()];
                    let window = &transform.basis.window[taps.clone()];
                    to.iter_mut().zip(&frame[taps]).zip(window).for_each(|((to, x), w)| *to += x * w);
                }
            }
        }
        Ok(())
    }

    /// Returns the frames that have taps at some of `len` positions from `first` on.
    fn reaching(&self, first: usize, len: usize) -> Range<usize> {
        let (stride, pad) = (self.axis.stride as i64, self.axis.pad_begin);
        let within = |frame: i64| frame.clamp(0, self.frames as i64) as usize;
        let begin = within(ceil_div(first as i64 + pad - self.transform.taps() as i64 + 1, stride));
        let end = within(ceil_div((first + len) as i64 + pad, stride));
        begin..end.max(begin)
    }

    /// Writes the spectra of `count` frames.
    fn read_spectra(&self, image: usize, first: usize, count: usize, block: &mut [Complex<f32>]) {
        let transform = self.transform;
        let (pitch, channels) = (transform.pitch(), transform.channels.len());
        let block = &mut block[..count * pitch];
        block.fill(Complex::new(0.0, 0.0));
        let from = &self.from[image * channels * self.frames..][..channels * self.frames];
        if self.channels_first {
            for (from, channel) in from.chunks_exact(self.frames).zip(&transform.channels) {
                let spectra = block[channel.bin..].iter_mut().step_by(pitch).zip(&from[first..][..count]);
                if channel.imaginary {
                    spectra.for_each(|(bin, x)| bin.im += x * channel.factor);
                } else {
                    spectra.for_each(|(bin, x)| bin.re += x * channel.factor);
                }
            }
        } else {
            let from = from[first * channels..].chunks_exact(channels);
            for (from, spectrum) in from.zip(block.chunks_exact_mut(pitch)) {
                for (x, channel) in from.iter().zip(&transform.channels) {
                    let bin = &mut spectrum[channel.bin];
                    let part = if channel.imaginary { &mut bin.im } else { &mut bin.re };
                    *part += x * channel.factor;
                }
            }
        }
    }
}

/// Returns whether all values are finite, in a loop that compilers vectorise.
fn are_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = f32::INFINITY.to_bits();
    values.iter().fold(0, |found, value| found | u32::from(value.to_bits() & EXPONENT == EXPONENT)) == 0
}

fn failed(error: realfft::FftError) -> TractError {
    format_err!("fourier: {error}")
}

impl fmt::Debug for Transform {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Transform({} points)", self.points())
    }
}

impl PartialEq for Transform {
    fn eq(&self, other: &Transform) -> bool {
        let forward = |transform: &Transform| matches!(transform.fft, Fft::Forward(_));
        self.basis == other.basis && forward(self) == forward(other)
    }
}

// The numbers of a basis are finite.
impl Eq for Transform {}

impl Hash for Transform {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.basis.points.hash(state);
        self.basis.window.len().hash(state);
    }
}
