//! Shared by the benches: workloads as specs, seeded tensors, and the comparison that precedes any
//! timing.

// Each bench uses a part of this module.
#![allow(dead_code)]

use serde::Deserialize;
use tract_core::internal::*;
use tract_deconv::PackedFilter;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{Plan, PlanOptions};

/// One operator of `benches/workloads.json`.
#[derive(Deserialize)]
pub struct Workload {
    pub name: String,
    op: String,
    layout: String,
    batch: usize,
    in_channels: usize,
    out_channels: usize,
    group: usize,
    kernel: Vec<usize>,
    strides: Vec<usize>,
    pads: Vec<i64>,
    dilations: Vec<usize>,
    output_padding: Vec<usize>,
    input_spatial: Vec<usize>,
    pub useful_flops: u64,
}

/// Reads all operators of `benches/workloads.json`.
pub fn workloads() -> TractResult<Vec<Workload>> {
    #[derive(Deserialize)]
    struct File {
        operators: Vec<Workload>,
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/workloads.json");
    Ok(serde_json::from_str::<File>(&std::fs::read_to_string(path)?)?.operators)
}

impl Workload {
    pub fn spec(&self) -> DeconvSpec {
        let (begin, end) = self.pads.split_at(self.kernel.len());
        let forward = self.op == "conv";
        DeconvSpec {
            direction: if forward { Direction::Forward } else { Direction::Transposed },
            data_format: if self.layout == "NXC" { DataFormat::Nxc } else { DataFormat::Ncx },
            filter_format: if forward { FilterFormat::GroupedOix } else { FilterFormat::Iox },
            in_channels: self.in_channels,
            out_channels: self.out_channels,
            group: self.group,
            kernel: self.kernel.iter().copied().collect(),
            strides: self.strides.iter().copied().collect(),
            dilations: self.dilations.iter().copied().collect(),
            padding: Padding::Explicit { begin: begin.iter().copied().collect(), end: end.iter().copied().collect() },
            output_padding: self.output_padding.iter().copied().collect(),
        }
    }

    pub fn input_shape(&self) -> TVec<usize> {
        let spec = self.spec();
        spec.data_format.shape(self.batch, self.in_channels, self.input_spatial.iter().copied())
    }
}

/// Returns values between -1 and 1 that are the same in every run.
pub fn seeded(shape: &[usize], seed: u32) -> TractResult<Tensor> {
    let mut state = seed;
    let values = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    });
    Tensor::from_shape(shape, &values.take(shape.iter().product()).collect::<Vec<f32>>())
}

/// One layer, ready to run under any plan.
pub struct Layer {
    pub spec: DeconvSpec,
    pub input: Tensor,
    filter: Arc<Tensor>,
    bias: Tensor,
}

/// A plan with the filter that it reads.
pub struct Ready {
    pub plan: Plan,
    built: tract_deconv::Layer,
    filter: PackedFilter,
}

impl Layer {
    pub fn new(spec: DeconvSpec, input_shape: &[usize]) -> TractResult<Layer> {
        let input = seeded(input_shape, 1)?;
        let filter = seeded(&spec.filter_shape(), 2)?.into_arc_tensor();
        let bias = seeded(&[spec.out_channels], 3)?;
        Ok(Layer { spec, input, filter, bias })
    }

    pub fn plan(&self, options: &PlanOptions) -> TractResult<Ready> {
        let plan = Plan::new(&self.spec, self.input.shape(), None, f32::datum_type(), options)?;
        let filter = PackedFilter::pack(&self.spec, &plan.filter_layout(), &self.filter)?;
        let built = tract_deconv::Layer::new(plan.clone());
        Ok(Ready { plan, built, filter })
    }

    /// The estimate of a plan, without the filter that it would read.
    pub fn cost(&self, options: &PlanOptions) -> Option<u64> {
        Plan::new(&self.spec, self.input.shape(), None, f32::datum_type(), options).ok()?.cost()
    }

    pub fn run(&self, ready: &Ready) -> TractResult<Tensor> {
        ready.built.run(&self.input, &ready.filter, Some(&self.bias))
    }
}

/// Fails if two results differ by more than 1e-4 of the largest magnitude.
pub fn compare(what: &str, got: &Tensor, want: &Tensor) -> TractResult<()> {
    ensure!(got.shape() == want.shape(), "{what}: shape={:?}, {:?} is right", got.shape(), want.shape());
    let (got, want) = (got.try_as_plain_ram()?.as_slice::<f32>()?, want.try_as_plain_ram()?.as_slice::<f32>()?);
    let largest = want.iter().fold(0f32, |largest, v| largest.max(v.abs()));
    let error = got.iter().zip(want).fold(0f32, |error, (a, b)| error.max((a - b).abs()));
    ensure!(error <= 1e-4 * largest, "{what}: error={error}, 1e-4 of {largest} is allowed");
    Ok(())
}
