//! Tables of bad inputs that must be refused at loading, typing or running, each with its message.

#[path = "../common/mod.rs"]
mod common;

mod onednn;
mod onnx;
mod openvino;
mod run_time;
mod table;
