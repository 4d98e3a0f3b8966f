//! The models of `models/`, as code: `make_models` writes them, `tests/models_fresh.rs` compares
//! them with the committed files.

mod analytic;
mod networks;
mod proto;

use prost::Message;
use std::path::{Path, PathBuf};

/// Name and serialised ModelProto of every model, in the order of `models/README.md`.
pub fn models() -> Vec<(&'static str, Vec<u8>)> {
    [
        ("upscale4", analytic::upscale4()),
        ("istft", analytic::istft()),
        ("dcgan_small", networks::dcgan_small()),
        ("denoiser", networks::denoiser()),
        ("unet_symbolic", networks::unet_symbolic()),
        ("vocoder", networks::vocoder()),
    ]
    .into_iter()
    .map(|(name, proto)| (name, proto.encode_to_vec()))
    .collect()
}

/// Where the model called `name` lives below the folder `models`.
pub fn file(models: &Path, name: &str) -> PathBuf {
    models.join(name).join("model.onnx")
}
