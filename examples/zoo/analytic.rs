//! Models whose weights follow from a formula.

use super::proto::{Graph, int, ints, string};
use std::f64::consts::PI;
use tract_onnx::pb::ModelProto;

/// Bilinear 4x upsampling of RGB pictures, with half-pixel centres and clamped borders.
pub fn upscale4() -> ModelProto {
    const FACTOR: usize = 4;
    const KERNEL: usize = 2 * FACTOR;
    let tent = |i: usize| 1.0 - (i as f32 + 0.5 - FACTOR as f32).abs() / FACTOR as f32;
    let kernel = (0..KERNEL * KERNEL).map(|i| tent(i / KERNEL) * tent(i % KERNEL));

    let mut g = Graph::new("upscale4");
    let image = g.input("image", "1 3 height width");
    // One more pixel on each side keeps the border from fading to black. Its 4 output pixels are
    // cropped again, and so are the 2 pixels by which half-pixel centres shift the result.
    let border = g.i64s("border", &[0, 0, 1, 1, 0, 0, 1, 1]);
    let padded = g.node("padded", "Pad", &[&image, &border], vec![string("mode", "edge")]);
    let w = g.f32s("tent", &[3, 1, KERNEL, KERNEL], kernel.collect::<Vec<_>>().repeat(3));
    g.node(
        "upscaled",
        "ConvTranspose",
        &[&padded, &w],
        vec![
            int("group", 3),
            ints("kernel_shape", &[KERNEL as i64; 2]),
            ints("strides", &[FACTOR as i64; 2]),
            ints("pads", &[6; 4]),
        ],
    );
    g.output("upscaled", "1 3 height_x4 width_x4");
    g.into_model(7, 13, "bilinear 4x upsampling, one group per colour")
}

/// Inverse STFT with Hann windows on both sides, 256 samples per frame and 64 per hop.
///
/// Channel `k` holds the real part of bin `k`, channel `129 + k` its imaginary part. The kernel of
/// a channel is the inverse DFT's basis function times the window, over the windows' overlap sum.
/// The crop drops the samples that are not covered by all four frames they belong to.
pub fn istft() -> ModelProto {
    const FRAME: usize = 256;
    const HOP: usize = 64;
    const BINS: usize = FRAME / 2 + 1;
    let hann = |n: usize| 0.5 - 0.5 * turn_cos(n, FRAME);
    let overlap: f64 = (0..FRAME / HOP).map(|i| hann(i * HOP).powi(2)).sum();
    let kernel = (0..2 * BINS).flat_map(|channel| {
        (0..FRAME).map(move |n| {
            let k = channel % BINS;
            let mirrored = if k == 0 || k == FRAME / 2 { 1.0 } else { 2.0 };
            // -sin(t) = cos(t + a quarter turn)
            let quarter = if channel < BINS { 0 } else { FRAME / 4 };
            let basis = mirrored * turn_cos(k * n + quarter, FRAME) / FRAME as f64;
            (basis * hann(n) / overlap) as f32
        })
    });

    let mut g = Graph::new("istft");
    let spectrum = g.input("spectrum", "channels 258 frames");
    let w = g.f32s("basis", &[2 * BINS, 1, FRAME], kernel.collect());
    let crop = (FRAME - HOP) as i64;
    g.node(
        "signal",
        "ConvTranspose",
        &[&spectrum, &w],
        vec![ints("strides", &[HOP as i64]), ints("pads", &[crop, crop])],
    );
    g.output("signal", "channels 1 samples");
    g.into_model(10, 22, "inverse STFT: Hann, frame 256, hop 64, real bins then imaginary bins")
}

/// Returns `cos(2π·numerator/turn)` for an even `turn`.
///
/// The angle is reduced to the first quarter in integers, which makes zeros and symmetries exact.
fn turn_cos(numerator: usize, turn: usize) -> f64 {
    let n = numerator % turn;
    let n = n.min(turn - n);
    let (n, sign) = if 4 * n > turn { (turn / 2 - n, -1.0) } else { (n, 1.0) };
    if 4 * n == turn { 0.0 } else { sign * (2.0 * PI * n as f64 / turn as f64).cos() }
}
