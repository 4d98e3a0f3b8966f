//! Takes a WAV to its short-time Fourier transform, and back through `models/istft`, a 1-D
//! ConvTranspose: `cargo run --release --example istft [in.wav [out.wav]]`. Without a WAV it makes
//! a tune of its own.

use anyhow::{Context, Result, ensure};
use hound::{SampleFormat, WavReader, WavSpec, WavWriter};
use rustfft::{FftPlanner, num_complex::Complex32};
use std::f32::consts::TAU;
use std::path::{Path, PathBuf};
use tract_deconv::WithDeconv;
use tract_onnx::prelude::*;

// the framing that the model's weights are made for
const FRAME: usize = 256;
const HOP: usize = 64;
const BINS: usize = FRAME / 2 + 1;

fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (spec, channels) = match args.next() {
        Some(file) => read(&file).with_context(|| file.display().to_string())?,
        None => {
            let spec =
                WavSpec { channels: 1, sample_rate: 16000, bits_per_sample: 16, sample_format: SampleFormat::Int };
            let channels = vec![tune(spec.sample_rate)];
            write(Path::new("istft_input.wav"), spec, &channels)?;
            println!("played istft_input.wav");
            (spec, channels)
        }
    };
    let out = args.next().unwrap_or_else(|| "istft.wav".into());

    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/istft/model.onnx");
    let model = tract_onnx::onnx().with_deconv().model_for_path(model)?.into_optimized()?.into_runnable()?;
    let spectrum = stft(&channels);
    println!("spectrum: {:?} (channels, real and imaginary bins, frames)", spectrum.shape());
    let signal = model.run(tvec!(spectrum.into()))?.remove(0);
    let signal = signal.to_plain_array_view::<f32>()?.into_dimensionality::<tract_ndarray::Ix3>()?;

    let mut rebuilt = vec![];
    for (channel, original) in channels.iter().enumerate() {
        let samples: Vec<f32> = signal.slice(tract_ndarray::s![channel, 0, ..original.len()]).to_vec();
        let energy: f64 = original.iter().map(|&x| f64::from(x).powi(2)).sum();
        let error: f64 = original.iter().zip(&samples).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum();
        let snr = if error == 0.0 { f64::INFINITY } else { 10.0 * (energy / error).log10() };
        println!("channel {channel}: reconstruction SNR {snr:.1} dB");
        rebuilt.push(samples);
    }
    write(&out, spec, &rebuilt).with_context(|| out.display().to_string())?;
    println!("{} samples at {} Hz: {}", channels[0].len(), spec.sample_rate, out.display());
    Ok(())
}

/// Returns the spectrum, of shape `[channels, BINS real and then BINS imaginary parts, frames]`.
fn stft(channels: &[Vec<f32>]) -> Tensor {
    let hann: Vec<f32> = (0..FRAME).map(|n| 0.5 - 0.5 * (TAU * n as f32 / FRAME as f32).cos()).collect();
    let fft = FftPlanner::new().plan_fft_forward(FRAME);
    // the first sample is in four frames, like all others
    let lead = FRAME - HOP;
    let frames = channels[0].len().div_ceil(HOP) + lead / HOP;
    let mut spectrum = tract_ndarray::Array3::zeros((channels.len(), 2 * BINS, frames));
    for (channel, samples) in channels.iter().enumerate() {
        for frame in 0..frames {
            let sample = |n: usize| (frame * HOP + n).checked_sub(lead).and_then(|at| samples.get(at)).unwrap_or(&0.0);
            let mut buffer: Vec<Complex32> = (0..FRAME).map(|n| Complex32::from(hann[n] * sample(n))).collect();
            fft.process(&mut buffer);
            for (bin, value) in buffer[..BINS].iter().enumerate() {
                spectrum[[channel, bin, frame]] = value.re;
                spectrum[[channel, BINS + bin, frame]] = value.im;
            }
        }
    }
    spectrum.into_tensor()
}

/// Reads the channels of a WAV, in -1..1.
fn read(file: &Path) -> Result<(WavSpec, Vec<Vec<f32>>)> {
    let mut wav = WavReader::open(file)?;
    let spec = wav.spec();
    let samples: Vec<f32> = match spec.sample_format {
        SampleFormat::Float => wav.samples().collect::<Result<_, _>>()?,
        SampleFormat::Int => {
            let unit = full_scale(spec).recip();
            wav.samples::<i32>().map(|s| s.map(|s| s as f32 * unit)).collect::<Result<_, _>>()?
        }
    };
    let count = spec.channels as usize;
    ensure!(samples.len() >= count, "no samples");
    let channels = (0..count).map(|c| samples.iter().copied().skip(c).step_by(count).collect()).collect();
    Ok((spec, channels))
}

fn write(file: &Path, spec: WavSpec, channels: &[Vec<f32>]) -> Result<()> {
    let mut wav = WavWriter::create(file, spec)?;
    let full_scale = full_scale(spec);
    for at in 0..channels[0].len() {
        for channel in channels {
            match spec.sample_format {
                SampleFormat::Float => wav.write_sample(channel[at])?,
                SampleFormat::Int => {
                    let sample = (channel[at] * full_scale).round();
                    wav.write_sample(sample.clamp(-full_scale, full_scale - 1.0) as i32)?
                }
            }
        }
    }
    Ok(wav.finalize()?)
}

/// Returns the magnitude of -1 in a WAV of integers.
fn full_scale(spec: WavSpec) -> f32 {
    (1u64 << (spec.bits_per_sample - 1)) as f32
}

/// Returns two seconds of sound: a plucked chord, then a rising sweep.
fn tune(rate: u32) -> Vec<f32> {
    let rate = rate as f32;
    (0..2 * rate as usize)
        .map(|n| {
            let t = n as f32 / rate;
            if t < 1.0 {
                let chord = [261.63, 329.63, 392.0, 523.25].map(|hz| (TAU * hz * t).sin());
                0.2 * (-3.0 * t).exp() * chord.iter().sum::<f32>()
            } else {
                let t = t - 1.0;
                0.4 * (TAU * (200.0 * t + 1800.0 * t * t)).sin()
            }
        })
        .collect()
}
