//! Streams audio out of `models/vocoder` while spectrum frames come in, in constant memory:
//! `cargo run --release --features pulse --example stream [seconds [out.wav]]`.
//!
//! The frames are generated as they are needed. The samples of the first ones are compared with
//! those of a single run on all of them.

use anyhow::{Context, Result, ensure};
use hound::{SampleFormat, WavSpec, WavWriter};
use std::path::{Path, PathBuf};
use tract_deconv::{GroupedDeconv, WithDeconv};
use tract_onnx::prelude::*;
use tract_pulse::model::{PulsedModel, PulsedModelExt};

const RATE: u32 = 16000;
/// The product of the model's strides.
const SAMPLES_PER_FRAME: usize = 256;
const BANDS: usize = 40;
/// The frames of a pulse.
const PULSE: usize = 2;
/// The frames whose samples are compared with a single run.
const COMPARED: usize = 48;
/// The frames at the end whose samples depend on later frames.
const LOOKAHEAD: usize = 16;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().map_or(Ok(20.0), |arg| arg.parse()).context("seconds")?;
    let out = args.next().map_or_else(|| PathBuf::from("stream.wav"), PathBuf::from);
    let frames = COMPARED.max((seconds * RATE as f64) as usize / SAMPLES_PER_FRAME);

    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/vocoder/model.onnx");
    let model = tract_onnx::onnx().with_deconv().model_for_path(model)?.into_typed()?.into_decluttered()?;
    let batch = model.symbols.sym("batch");
    let model = model.set_symbols(&[(batch, 1.to_dim())].into())?;

    let length = model.symbols.sym("frames");
    let pulsed = PulsedModel::new(&model, length, &PULSE.to_dim())?.into_typed()?.into_decluttered()?;
    let ours = pulsed.nodes().iter().filter(|node| node.op_is::<GroupedDeconv>()).count();
    ensure!(ours == 4, "{ours} deconvolutions stream, the model has 4");
    let delay = pulsed.properties.get("pulse.delay").context("no delay")?.cast_to_scalar::<i64>()? as usize;
    println!("{PULSE} frames a pulse, {delay} samples late, {ours} streaming deconvolutions");

    let spec = WavSpec { channels: 1, sample_rate: RATE, bits_per_sample: 16, sample_format: SampleFormat::Int };
    let mut wav = WavWriter::create(&out, spec)?;
    let mut first = Vec::with_capacity(COMPARED * SAMPLES_PER_FRAME);
    let mut state = pulsed.into_optimized()?.into_runnable()?.spawn()?;
    let (mut skipped, mut resident) = (0, None);
    for at in (0..frames + delay.div_ceil(SAMPLES_PER_FRAME)).step_by(PULSE) {
        let samples = state.run(tvec!(spectrum(at, PULSE).into_tvalue()))?.remove(0);
        for sample in samples.to_plain_array_view::<f32>()? {
            if skipped < delay {
                skipped += 1;
                continue;
            }
            wav.write_sample((sample * i16::MAX as f32) as i16)?;
            if first.len() < first.capacity() {
                first.push(*sample);
            }
        }
        if resident.is_none() && first.len() == first.capacity() {
            resident = resident_kilobytes();
        }
    }
    println!("{:.1} s: {}", wav.duration() as f64 / RATE as f64, out.display());
    wav.finalize()?;
    if let (Some(before), Some(after)) = (resident, resident_kilobytes()) {
        let grown = after.saturating_sub(before);
        println!("memory grew by {grown} kB while it streamed");
        // the size of the samples since then
        let kept = frames.saturating_sub(COMPARED) * SAMPLES_PER_FRAME * size_of::<f32>() / 1024;
        ensure!(kept < 1000 || grown < kept / 2, "memory grows with the stream");
    }

    let whole = model.into_optimized()?.into_runnable()?.run(tvec!(spectrum(0, COMPARED).into_tvalue()))?.remove(0);
    let whole = whole.to_plain_array_view::<f32>()?;
    let settled = (COMPARED - LOOKAHEAD) * SAMPLES_PER_FRAME;
    let worst = whole.iter().zip(&first).take(settled).map(|(whole, streamed)| (whole - streamed).abs());
    // a NaN counts as the worst error
    let worst = worst.fold(0f32, |most, error| if error <= most { most } else { error });
    println!("off by {worst:.1e} from the whole at once");
    ensure!(worst < 1e-4, "the stream gives other samples");
    Ok(())
}

/// Returns frames `from..from + count` of a spectrum of three tones that move over the bands.
fn spectrum(from: usize, count: usize) -> Tensor {
    tract_ndarray::Array3::from_shape_fn((1, BANDS, count), |(_, band, frame)| {
        let time = (from + frame) as f32 / 60.0;
        let tones = [(1.0, 0.31), (0.6, 0.77), (0.4, 1.9)].map(|(loud, pace): (f32, f32)| {
            let place = (0.5 + 0.5 * (pace * time).sin()) * (BANDS - 1) as f32;
            loud * (-(band as f32 - place).powi(2) / 4.0).exp()
        });
        tones.iter().sum::<f32>()
    })
    .into_tensor()
}

/// Returns the resident memory of this process, if the system reports it.
fn resident_kilobytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()
}
