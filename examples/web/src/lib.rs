//! ONNX models for a page: `page/engine.mjs` calls these functions. Tensors are of f32.
//!
//! Whoever calls is one thread, passes pointers that [`allocate`] returned, and gives sessions that [`load`] returned. The
//! functions are safe for such a caller only, who is no Rust code: a module's memory is its own.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::slice::from_raw_parts;
use std::sync::Arc;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::{TractErrorContext, ensure, tensor0};

/// Of all memory that is passed: no vector is wider.
const ALIGNMENT: usize = 16;

/// The most sizes that [`output`] writes.
const MOST_AXES: usize = 8;

thread_local!(static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) });

/// Random numbers for the operators that draw some, from whoever instantiates the module.
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
mod random {
    #[link(wasm_import_module = "host")]
    unsafe extern "C" {
        /// Writes `count` random bytes.
        fn random(bytes: *mut u8, count: usize);
    }

    /// The function that the crate getrandom calls, built with `getrandom_backend="custom"`.
    ///
    /// # Safety
    /// `count` bytes are writable.
    #[unsafe(no_mangle)]
    unsafe extern "Rust" fn __getrandom_v03_custom(bytes: *mut u8, count: usize) -> Result<(), getrandom::Error> {
        // SAFETY: this function's contract.
        unsafe { random(bytes, count) };
        Ok(())
    }
}

pub struct Session {
    model: Arc<TypedRunnableModel>,
    inputs: TVec<TValue>,
    outputs: TVec<TValue>,
}

/// Returns the value, or keeps the error for [`message`].
fn or_message<T>(result: TractResult<T>) -> Option<T> {
    result.map_err(|error| MESSAGE.set(format!("{error:#}"))).ok()
}

fn layout(bytes: usize) -> TractResult<Layout> {
    Ok(Layout::from_size_align(bytes.max(1), ALIGNMENT)?)
}

/// Returns memory that is not initialised, or null.
#[unsafe(no_mangle)]
pub extern "C" fn allocate(bytes: usize) -> *mut u8 {
    // SAFETY: the size is not 0.
    or_message(layout(bytes)).map_or(std::ptr::null_mut(), |layout| unsafe { alloc(layout) })
}

/// # Safety
/// [`allocate`] returned `memory` for as many bytes, and it was not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn release(memory: *mut u8, bytes: usize) {
    if let Some(layout) = or_message(layout(bytes)) {
        // SAFETY: this function's contract.
        unsafe { dealloc(memory, layout) }
    }
}

/// What the last call that failed said, in UTF-8. `bytes` becomes its length.
///
/// # Safety
/// `bytes` is writable. The message is read before another call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn message(bytes: *mut u32) -> *const u8 {
    MESSAGE.with_borrow(|message| {
        // SAFETY: this function's contract.
        unsafe { bytes.write(message.len() as u32) };
        message.as_ptr()
    })
}

fn onnx(plugin: bool) -> TractResult<tract_onnx::Onnx> {
    #[cfg(feature = "plugin")]
    if plugin {
        use tract_deconv::{WithConv, WithDeconv};
        return Ok(tract_onnx::onnx().with_deconv().with_conv());
    }
    ensure!(!plugin, "module: plugin=true, it was built without");
    Ok(tract_onnx::onnx())
}

/// Reads the shapes that [`load`] gets: the rank and the sizes of an input, then those of the next one.
fn shapes(mut words: &[u32]) -> TractResult<Vec<TVec<usize>>> {
    let mut shapes = vec![];
    while let Some((rank, rest)) = words.split_first() {
        let (sizes, rest) = rest.split_at_checked(*rank as usize).context("shapes: words are missing")?;
        shapes.push(sizes.iter().map(|size| *size as usize).collect());
        words = rest;
    }
    Ok(shapes)
}

/// `shapes` may be empty: the file's own then stay, with their symbols.
fn session(mut file: &[u8], plugin: bool, shapes: &[TVec<usize>]) -> TractResult<Session> {
    // what a file states of values within may not fit other sizes
    let onnx = onnx(plugin)?.with_ignore_value_info(!shapes.is_empty());
    let mut model = onnx.model_for_read(&mut file)?;
    let count = model.input_outlets()?.len();
    ensure!(shapes.is_empty() || shapes.len() == count, "shapes: count={}, the model has {count} inputs", shapes.len());
    for (ix, shape) in shapes.iter().enumerate() {
        model.set_input_fact(ix, f32::fact(shape).into())?;
    }
    let inputs = (0..count).map(|_| tensor0(0f32).into_tvalue()).collect();
    Ok(Session { model: model.into_optimized()?.into_runnable()?, inputs, outputs: tvec!() })
}

/// Loads an ONNX file, for stock tract or for tract with this project's plugin, and returns a session or null.
///
/// # Safety
/// `bytes` bytes and `words` words are readable: see [`shapes`] for these.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn load(
    file: *const u8,
    bytes: usize,
    plugin: bool,
    words: *const u32,
    count: usize,
) -> *mut Session {
    // SAFETY: this function's contract.
    let (file, words) = unsafe { (from_raw_parts(file, bytes), from_raw_parts(words, count)) };
    let loaded = shapes(words).and_then(|shapes| session(file, plugin, &shapes));
    or_message(loaded).map_or(std::ptr::null_mut(), |session| Box::into_raw(Box::new(session)))
}

/// # Safety
/// [`load`] returned the session, and it was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(session: *mut Session) {
    // SAFETY: this function's contract.
    drop(unsafe { Box::from_raw(session) });
}

/// Sets an input of the following runs, and returns whether it could.
///
/// # Safety
/// The session is open. `rank` sizes are readable, and as many values as they multiply to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn set_input(
    session: *mut Session,
    slot: usize,
    sizes: *const u32,
    rank: usize,
    values: *const f32,
) -> bool {
    // SAFETY: this function's contract.
    let (session, sizes) = unsafe { (&mut *session, from_raw_parts(sizes, rank)) };
    let shape: TVec<usize> = sizes.iter().map(|size| *size as usize).collect();
    // SAFETY: this function's contract.
    let values = unsafe { from_raw_parts(values, shape.iter().product()) };
    let count = session.inputs.len();
    let mut set = || -> TractResult<()> {
        let input =
            session.inputs.get_mut(slot).with_context(|| format!("input: slot={slot}, the model has {count}"))?;
        *input = Tensor::from_shape(&shape, values)?.into_tvalue();
        Ok(())
    };
    or_message(set()).is_some()
}

/// Runs the model on the inputs, and returns the number of outputs, or -1 after an error.
///
/// # Safety
/// The session is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn run(session: *mut Session) -> i32 {
    // SAFETY: this function's contract.
    let session = unsafe { &mut *session };
    let outputs = or_message(session.model.run(session.inputs.clone()));
    outputs.map_or(-1, |outputs| {
        session.outputs = outputs;
        session.outputs.len() as i32
    })
}

/// Returns the values of an output of the last run, or null. Writes its rank, and then its sizes.
///
/// # Safety
/// The session is open, and `1 + MOST_AXES` words are writable. The values are read before another call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn output(session: *const Session, slot: usize, words: *mut u32) -> *const f32 {
    // SAFETY: this function's contract.
    let session = unsafe { &*session };
    let read = || -> TractResult<_> {
        let output = session.outputs.get(slot).with_context(|| format!("output: slot={slot}, there is none"))?;
        ensure!(output.rank() <= MOST_AXES, "output: rank={}, {MOST_AXES} axes at most", output.rank());
        Ok((output.shape(), output.to_plain_array_view::<f32>()?.as_ptr()))
    };
    or_message(read()).map_or(std::ptr::null(), |(shape, values)| {
        for (at, word) in std::iter::once(shape.len()).chain(shape.iter().copied()).enumerate() {
            // SAFETY: this function's contract: the rank was checked.
            unsafe { words.add(at).write(word as u32) };
        }
        values
    })
}
