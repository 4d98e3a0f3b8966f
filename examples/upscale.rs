//! Enlarges a PNG four times through `models/upscale4`, a ConvTranspose with one group per colour:
//! `cargo run --release --example upscale [in.png [out.png]]`. Without a picture it draws one.

use anyhow::{Context, Result};
use image::{DynamicImage, Rgb32FImage, RgbImage, imageops};
use std::path::{Path, PathBuf};
use tract_deconv::WithDeconv;
use tract_onnx::prelude::*;

fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let picture = match args.next() {
        Some(file) => image::open(&file).with_context(|| file.display().to_string())?,
        None => {
            let drawn = DynamicImage::from(draw(120, 80));
            drawn.save("upscale_input.png")?;
            println!("drew upscale_input.png");
            drawn
        }
    };
    let out = args.next().unwrap_or_else(|| "upscaled.png".into());
    let picture = picture.into_rgb32f();

    // height and width stay symbols, so that one model takes pictures of every size
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/upscale4/model.onnx");
    let model = tract_onnx::onnx().with_deconv().model_for_path(model)?.into_optimized()?.into_runnable()?;

    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let input = tract_ndarray::Array4::from_shape_fn((1, 3, height, width), |(_, colour, y, x)| {
        picture.get_pixel(x as u32, y as u32)[colour]
    });
    let output = model.run(tvec!(input.into_tensor().into()))?.remove(0);
    let output = output.to_plain_array_view::<f32>()?.into_dimensionality::<tract_ndarray::Ix4>()?;
    let (_, _, height, width) = output.dim();
    let upscaled = Rgb32FImage::from_fn(width as u32, height as u32, |x, y| {
        image::Rgb([0, 1, 2].map(|colour| output[[0, colour, y as usize, x as usize]]))
    });

    let peer = imageops::resize(&picture, upscaled.width(), upscaled.height(), imageops::Triangle);
    let worst = upscaled.iter().zip(peer.iter()).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    println!("largest difference from the image crate's bilinear resize: {:.1e} of full scale", worst);

    DynamicImage::from(upscaled).into_rgb8().save(&out).with_context(|| out.display().to_string())?;
    println!("{}x{} -> {width}x{height}: {}", picture.width(), picture.height(), out.display());
    Ok(())
}

/// Draws an evening at sea. A bright frame and a checkerboard show the borders and edges.
fn draw(width: u32, height: u32) -> RgbImage {
    let mix = |a: [f32; 3], b: [f32; 3], t: f32| [0, 1, 2].map(|c| a[c] + (b[c] - a[c]) * t);
    let (w, h) = (width as f32, height as f32);
    let horizon = 0.62 * h;
    RgbImage::from_fn(width, height, |x, y| {
        let (fx, fy) = (x as f32 + 0.5, y as f32 + 0.5);
        let from_sun = (fx - 0.62 * w).hypot(fy - 0.5 * h);
        let hills = horizon - 7.0 - 5.0 * (fx * 0.11).sin() - 3.0 * (fx * 0.23 + 1.0).sin();
        let frame = x == 0 || y == 0 || x == width - 1 || y == height - 1;
        let colour = if frame {
            [255.0, 240.0, 200.0]
        } else if x < 25 && y < 25 {
            [40.0 + 200.0 * ((x + y) % 2) as f32; 3]
        } else if fy > horizon {
            let glitter = (fy * 2.1).sin() * (fx * 0.35 + fy).cos();
            let sea = mix([24.0, 60.0, 110.0], [8.0, 24.0, 60.0], (fy - horizon) / (h - horizon));
            mix(sea, [255.0, 190.0, 110.0], (0.5 + 0.5 * glitter) * (-(fx - 0.62 * w).powi(2) / 120.0).exp())
        } else if fy > hills {
            [48.0, 32.0, 66.0]
        } else if from_sun < 13.0 {
            [255.0, 226.0, 150.0]
        } else {
            mix([62.0, 58.0, 122.0], [250.0, 140.0, 92.0], (fy / horizon).powi(2))
        };
        image::Rgb(colour.map(|c| c.round() as u8))
    })
}
