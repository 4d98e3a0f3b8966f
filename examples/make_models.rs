//! Writes every `model.onnx` below `models/`: `cargo run --example make_models [folder]`.

mod zoo;

use std::path::PathBuf;

fn main() -> anyhow::Result<()> {
    let models = std::env::args_os()
        .nth(1)
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models"), PathBuf::from);
    for (name, bytes) in zoo::models() {
        let file = zoo::file(&models, &name);
        std::fs::create_dir_all(models.join(&name))?;
        std::fs::write(&file, &bytes)?;
        println!("{} {} bytes", file.display(), bytes.len());
    }
    Ok(())
}
