//! Loading and running models through the plugin, with panics caught.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use tract_core::internal::*;
use tract_deconv::{WithConv, WithDeconv};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

/// The stage of a model's processing at which it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Typed,
    Decluttered,
    Optimised,
}

impl Stage {
    pub const ALL: [Stage; 3] = [Stage::Typed, Stage::Decluttered, Stage::Optimised];

    pub fn of(self, model: TypedModel) -> TractResult<TypedModel> {
        match self {
            Stage::Typed => Ok(model),
            Stage::Decluttered => model.into_decluttered(),
            Stage::Optimised => model.into_optimized(),
        }
    }
}

/// Loads through the plugin, including forward convolutions.
pub fn load(proto: &ModelProto) -> TractResult<TypedModel> {
    tract_onnx::onnx().with_deconv().with_conv().model_for_proto_model(proto)?.into_typed()
}

/// Loads through tract alone.
pub fn load_stock(proto: &ModelProto) -> TractResult<TypedModel> {
    tract_onnx::onnx().model_for_proto_model(proto)?.into_typed()
}

/// Runs a model. The inputs have the model's order.
pub fn run(model: TypedModel, inputs: &[Tensor]) -> TractResult<Vec<Arc<Tensor>>> {
    let inputs = inputs.iter().map(|t| t.clone().into_tvalue()).collect();
    Ok(model.into_runnable()?.run(inputs)?.into_iter().map(|v| v.into_arc_tensor()).collect())
}

/// Loads through the plugin, brings the model to a stage, runs it, and returns the first output.
pub fn run_at(proto: &ModelProto, stage: Stage, inputs: &[Tensor]) -> TractResult<Arc<Tensor>> {
    Ok(run(stage.of(load(proto)?)?, inputs)?.remove(0))
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The failure of a guarded job.
#[derive(Clone, Debug)]
pub enum Failure {
    Error(String),
    Panic(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Failure::Error(message) => f.write_str(message),
            Failure::Panic(message) => write!(f, "PANIC {message}"),
        }
    }
}

/// Runs a job that must not panic. A panic is returned with its message and location.
pub fn guarded<T>(job: impl FnOnce() -> TractResult<T>) -> Result<T, Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if GUARDED.get() {
                PANIC.set(info.to_string());
            } else {
                before(info);
            }
        }));
    });
    GUARDED.set(true);
    let result = catch_unwind(AssertUnwindSafe(job));
    GUARDED.set(false);
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Failure::Error(format!("{error:#}"))),
        Err(_) => Err(Failure::Panic(PANIC.take())),
    }
}

/// Checks that a result is an error, not a panic, whose message contains one of these words.
pub fn refused<T>(result: Result<T, Failure>, words: &[&str]) -> Result<(), String> {
    match result {
        Ok(_) => Err("it was accepted, an error was expected".into()),
        Err(Failure::Panic(message)) => Err(format!("PANIC {message}")),
        Err(Failure::Error(message)) if words.iter().any(|word| message.contains(word)) => Ok(()),
        Err(Failure::Error(message)) => Err(format!("the error names none of {words:?}: {message:?}")),
    }
}
