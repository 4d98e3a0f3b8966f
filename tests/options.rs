//! Global options, tested in a process of their own.

use std::time::Duration;
use tract_core::internal::*;
use tract_core::prelude::multithread::{Executor, multithread_tract_scope};
use tract_core::transform::get_transform_with_params;
use tract_deconv::internals::threads;
use tract_deconv::memory::idle_bytes;
use tract_deconv::{Options, WithDeconv, WithDeconvOptions, set_share_from, set_spin_time, spin_time};
use tract_onnx::prelude::{Framework, InferenceModelExt};

fn loading_with(options: Options) -> TractResult<()> {
    tract_onnx::onnx().with_deconv_options(&options).map(|_| ())
}

/// One test only, as the options are global.
#[test]
fn what_is_for_the_process_is_set_where_it_is_said() -> TractResult<()> {
    let usual = spin_time();
    loading_with(Options::default().with_spin_us(7))?;
    assert_eq!(spin_time(), Duration::from_micros(7));
    loading_with(Options::default())?;
    assert_eq!(spin_time(), Duration::from_micros(7), "what is left open stays");
    let refused = loading_with(Options::default().with_spin_us(9).with_strategy("fastest"));
    assert!(refused.is_err() && spin_time() == Duration::from_micros(7), "nothing is set by what is refused");

    let shared = |cost| multithread_tract_scope(Executor::multithread(3), || threads(cost));
    assert_eq!(shared(1 << 40), 3);
    loading_with(Options::default().with_share_from(u64::MAX))?;
    assert_eq!(shared(1 << 40), 1);
    assert_eq!(spin_time(), Duration::from_micros(7));
    loading_with(Options::default().with_share_from(1))?;
    assert_eq!([shared(0), shared(1)], [1, 3]);

    // Blocks are kept while there is a model that may reuse them.
    let onnx = tract_onnx::onnx().with_deconv();
    let model = onnx.model_for_path("models/upscale4/model.onnx")?.into_optimized()?.into_runnable()?;
    let run = || -> TractResult<usize> {
        drop(model.run(tvec!(Tensor::zero::<f32>(&[1, 3, 16, 16])?.into()))?);
        Ok(idle_bytes())
    };
    loading_with(Options::default().with_pool_bytes(0))?;
    assert_eq!(run()?, 0);
    loading_with(Options::default().with_pool_bytes(1 << 20))?;
    assert!((1..=1 << 20).contains(&run()?));

    // The transforms accept the same options as JSON.
    let mut params = <dyn erased_serde::Deserializer>::erase(serde_json::json!({ "spin_us": 0, "share_from": 1000 }));
    get_transform_with_params("conv", &mut params)?.context("registered")?.transform(&mut TypedModel::default())?;
    assert_eq!((spin_time(), shared(999), shared(1000)), (Duration::ZERO, 1, 3));

    set_spin_time(None);
    set_share_from(None);
    assert_eq!((spin_time(), shared(1), shared(1 << 40)), (usual, 1, 3));
    Ok(())
}
