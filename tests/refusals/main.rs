//! What must be refused, at load, while typing, or at run: tables of bad inputs, each with its message.

#[path = "../common/mod.rs"]
mod common;

mod onednn;
mod onnx;
mod openvino;
mod run_time;
mod table;
