//! The models of `models/`, as code: `make_models` writes them, `tests/models_fresh.rs` compares
//! them with the committed files.

mod analytic;
mod networks;
mod proto;
mod random;
mod specifications;

use prost::Message;
use std::path::{Path, PathBuf};

/// Returns the name and serialised ModelProto of every model, in the order of `models/README.md`.
pub fn models() -> Vec<(String, Vec<u8>)> {
    let own = [
        ("upscale4", analytic::upscale4()),
        ("istft", analytic::istft()),
        ("dcgan_small", networks::dcgan_small()),
        ("denoiser", networks::denoiser()),
        ("unet_symbolic", networks::unet_symbolic()),
        ("vocoder", networks::vocoder()),
    ];
    let own = own.into_iter().map(|(name, proto)| (name.to_string(), proto));
    let models = own.chain(specifications::models());
    models.map(|(name, proto)| (name, proto.encode_to_vec())).collect()
}

/// Returns the path of the model called `name` below the folder `models`.
pub fn file(models: &Path, name: &str) -> PathBuf {
    models.join(name).join("model.onnx")
}
