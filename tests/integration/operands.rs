//! A plan checks the operands that it is run on. Safe code gets an error, never uninitialised
//! memory.

use crate::common::oracle::Expected;
use crate::common::random::Random;
use crate::common::run::{guarded, refused};
use crate::common::spec::unpadded;
use tract_core::internal::*;
use tract_deconv::Layer;
use tract_deconv::{DeconvSpec, Direction, Plan, PlanOptions, Precision, Strategy};
use tract_deconv::{FilterLayout, PackedFilter};

const F32: DatumType = DatumType::F32;

/// Returns a spec of 6 to 4 channels in 2 groups, with 3 × 3 taps.
fn spec(direction: Direction) -> DeconvSpec {
    unpadded(direction, (6, 4, 2), &[3, 3], 2)
}

const INPUT: [usize; 4] = [2, 6, 5, 7];

fn filter(spec: &DeconvSpec, plan: &Plan) -> TractResult<PackedFilter> {
    let weights = Random(3).tensor(plan.datum_type(), &spec.filter_shape()).into_arc_tensor();
    PackedFilter::pack(spec, &plan.filter_layout(), &weights)
}

/// Returns a plan for every strategy that accepts the spec in an element type.
fn plans(spec: &DeconvSpec, dt: DatumType) -> Vec<Plan> {
    let forced = |strategy| PlanOptions::default().with_strategy(strategy);
    let plans: Vec<Plan> =
        Strategy::ALL.iter().filter_map(|s| Plan::new(spec, &INPUT, None, dt, &forced(*s)).ok()).collect();
    assert!(plans.len() >= 2, "{spec}: only {} strategies take it", plans.len());
    plans
}

#[test]
fn operands_of_another_problem_are_refused() -> TractResult<()> {
    for spec in [spec(Direction::Transposed), spec(Direction::Forward)] {
        for plan in plans(&spec, F32) {
            let packed = filter(&spec, &plan)?;
            let mut random = Random(5);
            let (x, bias) = (random.tensor(F32, &INPUT), random.tensor(F32, &[4]));
            let check = |x: &Tensor, filter: &PackedFilter, bias: &Tensor, words: &str| {
                let result = guarded(|| Layer::new(plan.clone()).run(x, filter, Some(bias)));
                refused(result, &[words]).map_err(|e| format_err!("{plan}: {e}"))
            };
            Layer::new(plan.clone()).run(&x, &packed, Some(&bias))?;

            for shape in [&[1, 6, 5, 7][..], &[3, 6, 5, 7], &[2, 6, 7, 5], &[2, 6, 35], &[2, 6, 5, 8], &[0, 6, 5, 7]] {
                let words = format!("input: shape={shape:?}, the plan is for [2, 6, 5, 7]");
                check(&random.tensor(F32, shape), &packed, &bias, &words)?;
            }
            let double = random.tensor(DatumType::F64, &INPUT);
            check(&double, &packed, &bias, "input: datum_type=F64, the plan is for F32")?;
            for shape in [&[3][..], &[5], &[0], &[4, 1], &[]] {
                let words = format!("bias: shape={shape:?}, one value per output channel, 4 of them, is needed");
                check(&x, &packed, &random.tensor(F32, shape), &words)?;
            }
            let double = random.tensor(DatumType::F64, &[4]);
            check(&x, &packed, &double, "bias: datum_type=F64, the plan is for F32")?;
        }
    }
    Ok(())
}

#[test]
fn filters_of_another_plan_are_refused() -> TractResult<()> {
    for direction in [Direction::Transposed, Direction::Forward] {
        let spec = spec(direction);
        let others = [
            unpadded(direction, (6, 4, 1), &[3, 3], 2),
            unpadded(direction, (6, 8, 2), &[3, 3], 2),
            unpadded(direction, (6, 4, 2), &[2, 3], 2),
            unpadded(direction, (6, 4, 2), &[3, 3], 3),
            DeconvSpec { dilations: tvec!(1, 2), ..spec.clone() },
        ];
        for plan in plans(&spec, F32) {
            let x = Random(9).tensor(F32, &INPUT);
            let check = |filter: TractResult<PackedFilter>, words: &str| {
                // Not every layout can hold every spec.
                let Ok(filter) = filter else { return Ok(()) };
                refused(guarded(|| Layer::new(plan.clone()).run(&x, &filter, None)), &[words])
                    .map_err(|e| format_err!("{plan}: {e}"))
            };
            for other in &others {
                check(filter(other, &plan), &format!("filter: packed for \"{other}\", the plan is for \"{spec}\""))?;
            }
            let weights = Random(3).tensor(DatumType::F64, &spec.filter_shape()).into_arc_tensor();
            let double = PackedFilter::pack(&spec, &plan.filter_layout(), &weights);
            if plan.strategy() != Strategy::MatrixPixels {
                check(Ok(double?), "filter: datum_type=F64, the plan is for F32")?;
            }
            for other in plans(&spec, F32).iter().filter(|other| other.filter_layout() != plan.filter_layout()) {
                check(filter(&spec, other), &format!("filter: layout={:?}, the plan reads", other.filter_layout()))?;
            }
        }
    }
    Ok(())
}

/// A packed filter does not depend on the padding, so nodes with different paddings can share it.
#[test]
fn a_filter_serves_every_padding() -> TractResult<()> {
    let spec = spec(Direction::Transposed);
    let padding = tract_deconv::Padding::Explicit { begin: tvec!(1, 0), end: tvec!(0, -2) };
    let padded = DeconvSpec { padding, output_padding: tvec!(1, 0), ..spec.clone() };
    let weights = Random(3).tensor(F32, &spec.filter_shape()).into_arc_tensor();
    let x = Random(9).tensor(F32, &INPUT);
    for plan in plans(&padded, F32) {
        let packed = PackedFilter::pack(&spec, &plan.filter_layout(), &weights)?;
        let expected = Expected::new(&padded, &x, &weights, None, None);
        expected.check(&Layer::new(plan.clone()).run(&x, &packed, None)?).map_err(|e| format_err!("{plan}: {e}"))?;
    }
    Ok(())
}

#[test]
fn specs_that_were_edited_are_refused() {
    let valid = spec(Direction::Transposed);
    let edited = [
        DeconvSpec { group: 0, ..valid.clone() },
        DeconvSpec { group: 4, ..valid.clone() },
        DeconvSpec { in_channels: 7, ..valid.clone() },
        DeconvSpec { strides: tvec!(2), ..valid.clone() },
        DeconvSpec { strides: tvec!(0, 1), ..valid.clone() },
        DeconvSpec { kernel: tvec!(0, 3), ..valid.clone() },
        DeconvSpec { dilations: tvec!(1, usize::MAX), ..valid.clone() },
        DeconvSpec { output_padding: tvec!(), ..valid.clone() },
    ];
    let weights = Random(3).tensor(F32, &valid.filter_shape()).into_arc_tensor();
    let open: TVec<TDim> = INPUT.iter().map(|dim| dim.to_dim()).collect();
    for spec in edited {
        let planned = guarded(|| Plan::new(&spec, &INPUT, None, F32, &PlanOptions::default()));
        assert!(refused(planned, &["="]).is_ok(), "{spec:?}");
        let packed = guarded(|| PackedFilter::pack(&spec, &FilterLayout::Plain, &weights));
        assert!(refused(packed, &["="]).is_ok(), "{spec:?}");
        assert_eq!(Plan::shape_free_layout(&spec, &open, F32, &PlanOptions::default()), FilterLayout::Plain);
    }
}

#[test]
fn layouts_that_no_kernel_reads_are_refused() {
    let spec = spec(Direction::Transposed);
    let weights = Random(3).tensor(F32, &spec.filter_shape()).into_arc_tensor();
    let layouts = [
        FilterLayout::Phases { mr: 0, last_mr: 1 },
        FilterLayout::Phases { mr: 4, last_mr: usize::MAX },
        FilterLayout::Chunks { width: 16, last_width: 16, chunk: 0 },
        FilterLayout::Chunks { width: 16, last_width: 16, chunk: usize::MAX },
        FilterLayout::Columns { mr: usize::MAX, last_mr: 4 },
        FilterLayout::Pixels { width: 0 },
        FilterLayout::Vectors { width: 0 },
        FilterLayout::Limbs { width: 1, last_width: 16, precision: Precision::Exact, of_planes: false },
    ];
    for layout in layouts {
        let packed = guarded(|| PackedFilter::pack(&spec, &layout, &weights));
        assert!(refused(packed, &["filter layout: layout="]).is_ok(), "{layout:?}");
        let options = PlanOptions::default().with_layout(layout.clone());
        let planned = guarded(|| Plan::new(&spec, &INPUT, None, F32, &options));
        assert!(refused(planned, &["filter layout: layout="]).is_ok(), "{layout:?}");
    }
}
