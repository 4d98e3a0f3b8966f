//! The least that a page needs: a model in, and a run on one tensor of f32.

use std::cell::RefCell;
use std::sync::Arc;
use tract_onnx::prelude::*;

thread_local!(static MODEL: RefCell<Option<Arc<TypedRunnableModel>>> = const { RefCell::new(None) });

fn onnx() -> tract_onnx::Onnx {
    #[cfg(feature = "plugin")]
    {
        use tract_deconv::{WithConv, WithDeconv};
        tract_onnx::onnx().with_deconv().with_conv()
    }
    #[cfg(not(feature = "plugin"))]
    tract_onnx::onnx()
}

/// Memory for the caller to write to. It is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn allocate(bytes: usize) -> *mut u8 {
    Vec::leak(vec![0u8; bytes]).as_mut_ptr()
}

/// Loads an ONNX file. Returns whether it can be run.
///
/// # Safety
/// `bytes` bytes are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn load(model: *const u8, bytes: usize) -> bool {
    // SAFETY: this function's contract.
    let mut file = unsafe { std::slice::from_raw_parts(model, bytes) };
    let runnable = onnx().model_for_read(&mut file).and_then(|model| model.into_optimized()?.into_runnable());
    MODEL.with_borrow_mut(|model| {
        *model = runnable.ok();
        model.is_some()
    })
}

/// Runs the model on a tensor and writes the first values of its output. Returns how many the output
/// has, or 0 after an error.
///
/// # Safety
/// `rank` sizes and as many values as they multiply to are readable, and `room` values writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn run(sizes: *const u32, rank: usize, values: *const f32, to: *mut f32, room: usize) -> usize {
    // SAFETY: this function's contract.
    let shape: Vec<usize> = unsafe { std::slice::from_raw_parts(sizes, rank) }.iter().map(|d| *d as usize).collect();
    // SAFETY: this function's contract.
    let values = unsafe { std::slice::from_raw_parts(values, shape.iter().product()) };
    let result = || -> TractResult<usize> {
        let input = Tensor::from_shape(&shape, values)?;
        let model = MODEL.with_borrow(|model| model.clone());
        let output = model.context("no model is loaded")?.run(tvec!(input.into_tvalue()))?.remove(0);
        let output = output.cast_to::<f32>()?;
        let view = output.to_plain_array_view::<f32>()?;
        for (at, value) in view.iter().enumerate().take(room) {
            // SAFETY: this function's contract.
            unsafe { to.add(at).write(*value) };
        }
        Ok(view.len())
    };
    result().unwrap_or(0)
}
