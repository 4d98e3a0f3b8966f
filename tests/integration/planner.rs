//! The planner's decisions as plain values: the strategy of a shape, and why the better-ranked ones
//! declined.
//!
//! Plans are made for named machines, so the assertions depend only on the architecture of the
//! machine that runs the tests.
#![cfg(target_arch = "x86_64")]

use crate::common::random::Random;
use crate::common::spec::unpadded;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;
use tract_deconv::Isa;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, OutputShape, Padding, Side};
use tract_deconv::{Activation, FilterLayout, PackedFilter, Step};
use tract_deconv::{Layer, Precision};
use tract_deconv::{Machine, Plan, PlanOptions, Strategy};

/// Returns a spec of two spatial axes with the same kernel, stride and pads.
fn spec(channels: [usize; 2], group: usize, [kernel, stride, pad]: [usize; 3]) -> DeconvSpec {
    DeconvSpec {
        direction: Direction::Transposed,
        data_format: DataFormat::Ncx,
        filter_format: FilterFormat::Iox,
        in_channels: channels[0],
        out_channels: channels[1],
        group,
        kernel: tvec!(kernel; 2),
        strides: tvec!(stride; 2),
        dilations: tvec!(1; 2),
        padding: Padding::Explicit { begin: tvec!(pad as i64; 2), end: tvec!(pad as i64; 2) },
        output_padding: tvec!(0; 2),
    }
}

fn forward(channels: [usize; 2], group: usize, geometry: [usize; 3]) -> DeconvSpec {
    let filter_format = FilterFormat::GroupedOix;
    DeconvSpec { direction: Direction::Forward, filter_format, ..spec(channels, group, geometry) }
}

fn plan(spec: &DeconvSpec, spatial: [usize; 2], options: &PlanOptions) -> TractResult<Plan> {
    let shape = spec.data_format.shape(1, spec.in_channels, spatial);
    Plan::new(spec, &shape, None, DatumType::F32, options)
}

/// Returns options for a machine without tile registers.
fn vectors() -> PlanOptions {
    PlanOptions::default().with_machine(Machine::ZEN4)
}

fn tile_registers() -> PlanOptions {
    PlanOptions::default().with_machine(Machine::SAPPHIRE_RAPIDS)
}

/// Returns options for an instruction set on a machine that has more.
fn on(isa: Isa) -> PlanOptions {
    vectors().with_isa(isa)
}

/// Returns the instruction sets of this architecture.
fn instruction_sets() -> impl Iterator<Item = Isa> {
    Isa::ALL.iter().copied().filter(|isa| isa.is_compiled())
}

#[test]
fn dense_layers_get_products_of_matrices() -> TractResult<()> {
    let cases = [
        (spec([512, 256], 1, [4, 2, 1]), [8, 8], true),
        (spec([256, 256], 1, [4, 2, 1]), [16, 16], true),
        (forward([512, 512], 1, [3, 1, 1]), [7, 7], true),
        // Few channels per group, input or output, leave most of a matrix product empty.
        (spec([128, 3], 1, [4, 2, 1]), [32, 32], false),
        (forward([3, 64], 1, [7, 2, 3]), [224, 224], false),
        (forward([256, 256], 32, [3, 1, 1]), [28, 28], false),
    ];
    for (spec, spatial, expected) in cases {
        for data_format in [DataFormat::Ncx, DataFormat::Nxc] {
            let spec = DeconvSpec { data_format, ..spec.clone() };
            let plan = plan(&spec, spatial, &tile_registers())?;
            assert_eq!(plan.strategy() == Strategy::MatrixPixels, expected, "{spec:?}: {}", plan.explain());
            let vectors = self::plan(&spec, spatial, &vectors())?;
            assert_ne!(vectors.strategy(), Strategy::MatrixPixels);
            let why = vectors.declined().iter().find(|(strategy, _)| *strategy == Strategy::MatrixPixels);
            assert!(why.is_some_and(|(_, why)| why.contains("no tile registers")));
        }
    }
    Ok(())
}

/// Planes of one tap are multiplied as they are. With channels last, pixels are.
#[test]
fn single_taps_get_products_of_planes() -> TractResult<()> {
    let cases = [
        (forward([128, 128], 1, [1, 1, 0]), [26, 26]),
        (forward([256, 64], 1, [1, 1, 0]), [26, 26]),
        (forward([128, 256], 1, [1, 2, 0]), [28, 28]),
        (spec([128, 128], 1, [1, 1, 0]), [30, 20]),
    ];
    for (spec, spatial) in cases {
        for (data_format, strategy) in
            [(DataFormat::Ncx, Strategy::MatrixPlanes), (DataFormat::Nxc, Strategy::MatrixPixels)]
        {
            let plan = plan(&DeconvSpec { data_format, ..spec.clone() }, spatial, &tile_registers())?;
            assert_eq!(plan.strategy(), strategy, "{}", plan.explain());
        }
    }
    // The taps of few channels fill the steps of tile registers together.
    let granite = PlanOptions::default().with_machine(Machine::GRANITE_RAPIDS);
    let first = plan(&forward([3, 256], 1, [7, 1, 3]), [16, 16], &granite)?;
    assert_eq!(first.strategy(), Strategy::MatrixPlanes, "{}", first.explain());
    let forced = tile_registers().with_strategy(Strategy::MatrixPlanes);
    let error = plan(&spec([128, 128], 1, [4, 2, 1]), [26, 26], &forced).unwrap_err().to_string();
    assert!(error.contains("matrix_planes: taps=16, phases=4, taps of one phase are needed"), "{error}");
    Ok(())
}

/// Copies of all pixels beyond L2 are worth it only if several taps read each of them.
#[test]
fn patches_of_large_inputs_are_not_copied_as_a_whole() -> TractResult<()> {
    let granite = PlanOptions::default().with_machine(Machine::GRANITE_RAPIDS);
    let plan = plan(&forward([384, 96], 1, [4, 4, 0]), [128, 128], &granite)?;
    assert_eq!(plan.strategy(), Strategy::MatrixPixels, "{}", plan.explain());
    Ok(())
}

#[test]
fn shapes_get_the_strategy_made_for_them() -> TractResult<()> {
    let cases = [
        (spec([256, 256], 256, [4, 2, 1]), [64, 64], Strategy::DepthwisePixels),
        (spec([6, 6], 6, [4, 2, 1]), [64, 64], Strategy::DirectPositions),
        (spec([64, 256], 64, [3, 2, 1]), [20, 20], Strategy::DirectPositions),
        (spec([192, 768], 192, [3, 3, 0]), [10, 5], Strategy::DepthwisePixels),
        (spec([100, 1024], 1, [4, 1, 0]), [1, 1], Strategy::Gemv),
        (spec([56, 1], 1, [9, 4, 4]), [120, 160], Strategy::Col2im),
        (spec([512, 256], 1, [4, 2, 1]), [8, 8], Strategy::Winograd),
        (spec([512, 256], 1, [4, 2, 1]), [2, 2], Strategy::Indirect),
        (spec([256, 1024], 1, [2, 2, 0]), [28, 28], Strategy::DirectChannels),
        (spec([128, 3], 1, [2, 2, 0]), [64, 64], Strategy::DirectPositions),
        (spec([8, 8], 1, [3, 4096, 0]), [2, 2], Strategy::Reference),
        (forward([96, 96], 96, [3, 2, 1]), [28, 28], Strategy::DepthwisePixels),
        (forward([128, 256], 128, [5, 2, 2]), [16, 8], Strategy::DepthwisePixels),
        (forward([96, 96], 96, [3, 2, 1]), [112, 112], Strategy::DepthwiseRows),
        (forward([32, 32], 32, [3, 1, 1]), [112, 112], Strategy::DepthwiseRows),
        (forward([64, 64], 1, [3, 1, 1]), [56, 56], Strategy::Winograd),
        (forward([144, 24], 1, [1, 1, 0]), [28, 28], Strategy::DirectPositions),
        (forward([256, 64], 1, [1, 1, 0]), [1, 1], Strategy::Gemv),
    ];
    for (spec, spatial, strategy) in cases {
        let plan = plan(&spec, spatial, &vectors())?;
        assert_eq!(plan.strategy(), strategy, "{spec:?}: {}", plan.explain());
        // Each better-ranked strategy gives a reason, and so does each rival whose cost was
        // compared.
        let declined: Vec<Strategy> = plan.declined().iter().map(|d| d.0).collect();
        assert!(Strategy::ALL.iter().copied().take_while(|s| *s != strategy).all(|s| declined.contains(&s)));
        assert!(!declined.contains(&strategy) && declined.iter().all_unique());
        assert!(plan.declined().iter().all(|(_, reason)| !reason.is_empty()));
        assert_eq!(plan.cost().is_none(), strategy == Strategy::Reference);
        let rivals = plan.declined().iter().filter(|(_, reason)| reason.starts_with("its estimated cost"));
        let reasons: Vec<&String> = rivals.map(|(_, reason)| reason).collect();
        let compared = plan.cost().map(|cost| format!("that of {strategy} {cost}")).unwrap_or_default();
        assert!(reasons.is_empty() || reasons.iter().any(|reason| reason.ends_with(&compared)), "{}", plan.explain());
    }
    Ok(())
}

#[test]
fn a_kernel_of_many_rows_is_not_for_tiles() -> TractResult<()> {
    let mut spec = forward([20, 200], 1, [3, 1, 0]);
    spec.kernel = tvec!(96, 3);
    for options in [vectors(), tile_registers()] {
        assert_ne!(plan(&spec, [96, 300], &options)?.strategy(), Strategy::Winograd);
        assert!(plan(&spec, [96, 300], &options.with_strategy(Strategy::Winograd)).is_err());
    }
    // Its filter exceeds L2, and would be read for each 32 positions.
    let chosen = plan(&spec, [96, 300], &tile_registers())?;
    assert_ne!(chosen.strategy(), Strategy::MatrixPlanes, "{}", chosen.explain());
    Ok(())
}

#[test]
fn depthwise_layers_are_read_in_place_where_that_saves_a_copy() -> TractResult<()> {
    let reads = |spec: &DeconvSpec, isa, size, how: &str| -> TractResult<bool> {
        let options = on(isa).with_strategy(Strategy::DepthwiseRows);
        Ok(plan(spec, [size; 2], &options)?.to_string().contains(how))
    };
    let in_place = |spec, isa| reads(spec, isa, 56, "a window moving down the rows of the input in place");
    let one = forward([64, 64], 64, [3, 1, 1]);
    // In place it needs as many masked loads as results. A copy is made once for all results.
    let multiplied = forward([1, 56], 1, [3, 1, 1]);
    assert!(in_place(&one, Isa::Avx512)?);
    assert!(!in_place(&multiplied, Isa::Avx512)?);
    // Short rows leave lanes of a window empty. Vectors across row ends do not, if rows keep their
    // width.
    let at_once = |spec, size| reads(spec, Isa::Avx512, size, "all rows of the input at once, in place");
    assert!(at_once(&one, 9)? && !at_once(&one, 56)? && !at_once(&forward([64, 64], 64, [3, 1, 0]), 9)?);
    // Loads of parts are slower on AVX2, and loads of the portable kernels can't mask lanes.
    let dilated = DeconvSpec { dilations: tvec!(2, 2), ..forward([64, 64], 64, [3, 1, 2]) };
    assert!(in_place(&one, Isa::Avx2)? && !in_place(&dilated, Isa::Avx2)?);
    assert!(!reads(&one, Isa::Avx2, 112, "in place")? && reads(&one, Isa::Avx512, 112, "in place")?);
    assert!(!in_place(&one, Isa::Portable)?);
    Ok(())
}

#[test]
fn channels_last_get_lanes_of_channels() -> TractResult<()> {
    for (channels, stride, spatial) in [([64, 32], 2, [128, 128]), ([256, 256], 2, [32, 24]), ([512, 256], 2, [8, 8])] {
        let spec = DeconvSpec { data_format: DataFormat::Nxc, ..spec(channels, 1, [2 * stride, stride, 1]) };
        let plan = plan(&spec, spatial, &vectors())?;
        assert_eq!(plan.strategy(), Strategy::Winograd, "{spec:?}: {}", plan.explain());
        // With one tap per phase.
        let tap_by_tap = DeconvSpec { kernel: spec.strides.clone(), ..spec.clone() };
        let plan = self::plan(&tap_by_tap, spatial, &vectors())?;
        assert_eq!(plan.strategy(), Strategy::DirectChannels, "{tap_by_tap:?}: {}", plan.explain());
    }
    Ok(())
}

/// A vector of output channels spans several groups. If its inputs are at most one vector, a lane
/// gather reads them from the input in place.
/// Where each sum is written once, or the sums of a pixel are all of it.
#[test]
fn channels_last_results_are_summed_in_the_output() -> TractResult<()> {
    let nxc = |channels| DeconvSpec { data_format: DataFormat::Nxc, ..forward(channels, 1, [1, 1, 0]) };
    let direct = vectors().with_isa(Isa::Avx512).with_strategy(Strategy::DirectChannels);
    let matrix = tile_registers().with_strategy(Strategy::MatrixPixels);
    for (spec, options, summed) in [
        (nxc([16, 32]), &direct, true),
        (nxc([512, 32]), &direct, true),
        (nxc([512, 128]), &direct, false),
        (forward([16, 32], 1, [1, 1, 0]), &direct, false),
        (nxc([256, 256]), &matrix, true),
        (nxc([2048, 256]), &matrix, false),
    ] {
        let plan = plan(&spec, [17, 17], options)?;
        assert_eq!(plan.to_string().contains("summed in the output"), summed, "{plan}");
    }
    Ok(())
}

#[test]
fn narrow_groups_of_channels_last_data_pick_their_lanes() -> TractResult<()> {
    let layers = [([32, 32], 16, [3, 2, 1]), ([128, 128], 64, [4, 2, 1]), ([32, 64], 32, [3, 1, 1])];
    // Portable arrays have no instruction for lane gathers. There, neither strategy is always
    // better.
    let sets = || instruction_sets().filter(|isa| *isa != Isa::Portable);
    for ((channels, group, geometry), isa) in layers.into_iter().flat_map(|layer| sets().map(move |isa| (layer, isa))) {
        let spec = DeconvSpec { data_format: DataFormat::Nxc, ..spec(channels, group, geometry) };
        let plan = plan(&spec, [40, 40], &on(isa))?;
        assert_eq!(plan.strategy(), Strategy::DepthwisePixels, "{}", plan.explain());
    }
    Ok(())
}

/// If the inputs exceed a vector, a group batch is used: inputs and results are transposed, and a
/// vector's lanes belong to several groups.
#[test]
fn narrow_groups_of_channels_last_data_are_batched() -> TractResult<()> {
    let narrow = spec([160, 16], 8, [3, 2, 1]);
    // With channels first, computing the products of a position at once costs about the same.
    for (data_format, forced) in [(DataFormat::Nxc, None), (DataFormat::Ncx, Some(Strategy::DirectPositions))] {
        let batched = forced.is_none();
        let spec = DeconvSpec { data_format, ..narrow.clone() };
        let plan = plan(&spec, [40, 40], &vectors().with_strategy(forced))?;
        assert_eq!(plan.strategy(), Strategy::DirectPositions, "{}", plan.explain());
        assert_eq!(plan.to_string().ends_with(" groups"), batched, "{plan}");
    }
    Ok(())
}

/// Long kernels with few output channels, as in layers that turn a spectrum into a signal, for any
/// number of frames.
#[test]
fn long_kernels_overlap() -> TractResult<()> {
    let spec = DeconvSpec {
        kernel: tvec!(256),
        strides: tvec!(64),
        dilations: tvec!(1),
        padding: Padding::zero(1),
        output_padding: tvec!(0),
        ..spec([258, 1], 1, [1, 1, 0])
    };
    let options = vectors();
    for frames in [29, 1000] {
        let plan = Plan::new(&spec, &[2, 258, frames], None, DatumType::F32, &options)?;
        assert_eq!(plan.strategy(), Strategy::OverlapAdd, "{}", plan.explain());
    }
    let scope = SymbolScope::default();
    let symbolic =
        Plan::shape_free_layout(&spec, &[2.to_dim(), 258.to_dim(), scope.sym("T").to_dim()], DatumType::F32, &options);
    let plan = Plan::new(&spec, &[2, 258, 1], None, DatumType::F32, &options.with_layout(symbolic))?;
    assert_ne!(plan.strategy(), Strategy::Reference, "{}", plan.explain());
    Ok(())
}

/// Pointwise axes are merged into one, as a matrix product does not depend on rows.
#[test]
fn pointwise_axes_are_folded() -> TractResult<()> {
    let pointwise = plan(&forward([64, 256], 1, [1, 1, 0]), [14, 15], &vectors())?;
    assert_eq!(
        (pointwise.problem().axes.len(), pointwise.folded().axes.len(), pointwise.folded().axes[0].output),
        (2, 1, 210)
    );
    assert_eq!(pointwise.folded().output_bytes(DatumType::F32), pointwise.problem().output_bytes(DatumType::F32));
    for geometry in [[1, 2, 0], [3, 1, 1], [1, 1, 1]] {
        let plan = plan(&forward([64, 64], 1, geometry), [14, 15], &vectors())?;
        assert_eq!(plan.folded(), plan.problem());
    }
    Ok(())
}

/// A layout for open sizes serves inputs whose last axis turns out to be dropped, so that a strided
/// one becomes that of columns.
#[test]
fn a_layout_for_open_sizes_does_not_count_on_axes_that_are_dropped() -> TractResult<()> {
    let symbols = SymbolScope::default();
    let dims = || (0..3).map(|_| symbols.new_with_prefix("size").to_dim()).collect::<TVec<_>>();
    let spec = DeconvSpec {
        strides: tvec!(1, 3, 1),
        padding: Padding::OutputShape { shape: OutputShape::Input(dims()), extra: Side::Begin },
        ..unpadded(Direction::Transposed, (1, 19, 1), &[1, 1, 1], 1)
    };
    for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
        let options = on(isa);
        let open: TVec<TDim> = [1.to_dim(), 1.to_dim()].into_iter().chain(dims()).collect();
        for datum_type in [DatumType::F32, DatumType::F64] {
            let layout = Plan::shape_free_layout(&spec, &open, datum_type, &options);
            let options = options.clone().with_layout(layout);
            let plan = Plan::new(&spec, &[1; 5], Some(&[1; 3]), datum_type, &options)?;
            assert_ne!(plan.strategy(), Strategy::Reference, "{}", plan.explain());
        }
    }
    Ok(())
}

/// The same of pointwise axes that are merged to the second of two axes, until all are single.
#[test]
fn a_layout_for_open_sizes_does_not_count_on_axes_that_are_merged() -> TractResult<()> {
    let symbols = SymbolScope::default();
    let sizes = (0..3).map(|_| symbols.new_with_prefix("size").to_dim());
    let open: TVec<TDim> = [1.to_dim(), 2.to_dim()].into_iter().chain(sizes).collect();
    let spec = DeconvSpec { dilations: tvec!(2, 1, 1), ..unpadded(Direction::Transposed, (2, 1, 1), &[4, 1, 1], 1) };
    for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Amx] {
        let layout = Plan::shape_free_layout(&spec, &open, DatumType::F32, &on(isa));
        assert_ne!(layout, FilterLayout::Plain, "{isa}");
        for shape in [[1, 2, 1, 1, 1], [1, 2, 5, 1, 1], [1, 2, 5, 4, 3]] {
            let options = on(isa).with_layout(layout.clone());
            Plan::new(&spec, &shape, None, DatumType::F32, &options).with_context(|| format!("{isa}, {shape:?}"))?;
        }
    }
    Ok(())
}

/// An axis of one position and one tap is dropped: the layer is that of the other axis.
#[test]
fn single_axes_are_folded() -> TractResult<()> {
    for direction in [Direction::Forward, Direction::Transposed] {
        let line = unpadded(direction, (64, 64, 1), &[7], 1);
        let alone = Plan::new(&line, &[1, 64, 100], None, DatumType::F32, &vectors())?;
        for (kernel, shape) in [([7, 1], [1, 64, 100, 1]), ([1, 7], [1, 64, 1, 100])] {
            let plane = unpadded(direction, (64, 64, 1), &kernel, 1);
            let plan = Plan::new(&plane, &shape, None, DatumType::F32, &vectors())?;
            assert_eq!((plan.folded(), plan.cost()), (alone.folded(), alone.cost()));
        }
        let wide = unpadded(direction, (64, 64, 1), &[7, 1], 1);
        let plan = Plan::new(&wide, &[1, 64, 100, 2], None, DatumType::F32, &vectors())?;
        assert_eq!(plan.folded(), plan.problem());
        let open = [1.to_dim(), 64.to_dim(), 100.to_dim(), SymbolScope::default().sym("W").to_dim()];
        let layout = Plan::shape_free_layout(&wide, &open, DatumType::F32, &vectors());
        let plan = Plan::new(&wide, &[1, 64, 100, 1], None, DatumType::F32, &vectors().with_layout(layout))?;
        assert_eq!((plan.folded(), plan.strategy()), (alone.folded(), alone.strategy()));
    }
    Ok(())
}

#[test]
fn empty_problems_are_left_to_the_reference() -> TractResult<()> {
    let plan = plan(&spec([64, 64], 1, [3, 2, 0]), [0, 8], &vectors())?;
    assert_eq!(plan.strategy(), Strategy::Reference);
    assert_eq!(plan.declined().len(), Strategy::ALL.len() - 1);
    assert!(plan.declined().iter().all(|(_, reason)| reason == "the input or the output is empty"));
    Ok(())
}

/// An open batch counts as one image. A requested size that is known is the size planned for.
#[test]
fn a_layout_for_open_sizes_is_that_of_the_sizes_assumed() -> TractResult<()> {
    // By the rates of this row, one image of the first layer needs another layout than many images do.
    let options = PlanOptions::default().with_machine(Machine::XEON);
    let planned = |spec: &DeconvSpec, shape: &[usize]| -> TractResult<FilterLayout> {
        Ok(Plan::new(spec, shape, None, DatumType::F32, &options)?.filter_layout())
    };
    let point = forward([256, 256], 1, [1, 1, 0]);
    let image = planned(&point, &[1, 256, 8, 8])?;
    assert_ne!(image, planned(&point, &[48, 256, 8, 8])?, "the batch does not matter");
    let open = [SymbolScope::default().sym("N").to_dim(), 256.to_dim(), 8.to_dim(), 8.to_dim()];
    assert_eq!(Plan::shape_free_layout(&point, &open, DatumType::F32, &options), image);

    let sized = |size: usize| {
        let shape = OutputShape::Dims(tvec!(size.to_dim(); 2));
        DeconvSpec { padding: Padding::OutputShape { shape, extra: Side::Begin }, ..spec([512, 256], 1, [4, 2, 1]) }
    };
    let (input, known) = ([1, 512, 8, 8], [1, 512, 8, 8].map(|dim: usize| dim.to_dim()));
    let large = planned(&sized(16), &input)?;
    assert_ne!(large, planned(&sized(4), &input)?, "the output's size does not matter");
    assert_eq!(Plan::shape_free_layout(&sized(16), &known, DatumType::F32, &options), large);
    Ok(())
}

/// Without sizes, the layout is the best one for images of three sizes. A requested size is taken for
/// that times the stride.
#[test]
fn open_sizes_get_the_layout_that_is_best_over_three() -> TractResult<()> {
    let symbols = SymbolScope::default();
    let open = |len: usize| (0..len).map(|_| symbols.new_with_prefix("size").to_dim()).collect::<TVec<TDim>>();
    let mut differ = 0;
    for (rank, sizes) in [(1, [256, 1024, 4096]), (2, [24, 48, 192]), (3, [8, 16, 32])] {
        for (direction, channels, stride) in [
            (Direction::Forward, (64, 64, 1), 1),
            (Direction::Forward, (96, 96, 96), 1),
            (Direction::Forward, (20, 200, 1), 1),
            (Direction::Transposed, (64, 64, 1), 2),
        ] {
            let spec = unpadded(direction, channels, &vec![3; rank], stride);
            let shape_input = OutputShape::Input(open(rank));
            let padding = Padding::OutputShape { shape: shape_input, extra: Side::Begin };
            let asked = (direction == Direction::Transposed).then(|| DeconvSpec { padding, ..spec.clone() });
            for spec in [Some(spec), asked].into_iter().flatten() {
                let requests = matches!(spec.padding, Padding::OutputShape { .. });
                let plan = |size: usize, options: &PlanOptions| {
                    let shape = spec.data_format.shape(1, spec.in_channels, vec![size; rank]);
                    let requested = requests.then(|| vec![(size * stride) as i64; rank]);
                    Plan::new(&spec, &shape, requested.as_deref(), DatumType::F32, options)
                };
                let layouts: Vec<FilterLayout> = sizes
                    .into_iter()
                    .map(|size| Ok(plan(size, &vectors())?.filter_layout()))
                    .collect::<TractResult<_>>()?;
                differ += usize::from(layouts.iter().any(|layout| *layout != layouts[0]));
                let cost = |layout: &FilterLayout| -> TractResult<f64> {
                    let options = vectors().with_layout(layout.clone());
                    let of_size = |size| plan(size, &options)?.cost().context("a plan with a cost");
                    sizes.into_iter().map(|size| Ok((of_size(size)? as f64).ln())).sum()
                };
                let chosen = Plan::shape_free_layout(&spec, &open(rank + 2), DatumType::F32, &vectors());
                ensure!(layouts.contains(&chosen), "{spec:?}: {chosen:?} is for none of the sizes");
                for layout in &layouts {
                    ensure!(cost(&chosen)? <= cost(layout)?, "{spec:?}: {chosen:?} costs more than {layout:?}");
                }
            }
        }
    }
    assert!(differ > 0, "all sizes have the same layout");
    // Sizes known to be one are kept.
    let point = forward([256, 64], 1, [1, 1, 0]);
    let dims = [symbols.sym("N").to_dim(), 256.to_dim(), 1.to_dim(), 1.to_dim()];
    let gemv = plan(&point, [1, 1], &vectors())?;
    assert_eq!(gemv.strategy(), Strategy::Gemv);
    assert_eq!(Plan::shape_free_layout(&point, &dims, DatumType::F32, &vectors()), gemv.filter_layout());
    Ok(())
}

#[test]
fn plans_are_values() -> TractResult<()> {
    let spec = spec([64, 64], 1, [3, 1, 1]);
    let (one, two) = (plan(&spec, [56, 56], &vectors())?, plan(&spec, [56, 56], &vectors())?);
    assert_eq!(one, two);
    assert_ne!(one, plan(&spec, [57, 56], &vectors())?);
    Ok(())
}

#[test]
fn explain_names_strategy_instruction_set_and_reasons() -> TractResult<()> {
    let options = on(Isa::Portable);
    let text = plan(&spec([512, 256], 1, [4, 2, 1]), [8, 8], &options)?.explain();
    for word in [
        "direct_channels",
        "portable",
        "depthwise_rows: 512 input channels per group, not one",
        "gemv: more than one input position",
    ] {
        assert!(text.contains(word), "{word} in: {text}");
    }
    Ok(())
}

#[test]
fn what_is_forced_is_what_runs_or_fails() -> TractResult<()> {
    let spec = spec([16, 16], 1, [3, 2, 1]);
    let forced = |strategy| vectors().with_strategy(strategy);
    assert_eq!(plan(&spec, [9, 9], &forced(Strategy::Reference))?.strategy(), Strategy::Reference);
    let error = plan(&spec, [9, 9], &forced(Strategy::DepthwiseRows)).unwrap_err().to_string();
    assert!(error.contains("16 input channels per group, not one"), "{error}");
    assert!(Strategy::from_name("fastest").unwrap_err().to_string().contains("strategy=fastest"));
    Ok(())
}

#[test]
fn a_layout_for_every_shape_does_not_count_on_folded_axes() -> TractResult<()> {
    let scope = SymbolScope::default();
    let spec = DeconvSpec {
        data_format: DataFormat::Nxc,
        kernel: tvec!(1, 1, 5),
        strides: tvec!(1, 1, 1),
        dilations: tvec!(1; 3),
        output_padding: tvec!(0; 3),
        padding: Padding::OutputShape {
            shape: OutputShape::Input((0..3).map(|_| scope.new_with_prefix("o").to_dim()).collect()),
            extra: Side::End,
        },
        ..spec([6, 1], 1, [1, 1, 0])
    };
    let open: TVec<TDim> =
        (0..5).map(|axis| if axis == 4 { 6.to_dim() } else { scope.new_with_prefix("d").to_dim() }).collect();
    for isa in instruction_sets() {
        let options = on(isa);
        let layout = Plan::shape_free_layout(&spec, &open, DatumType::F32, &options);
        // The first two axes are pointwise, or one of them is cropped.
        for shape in [[1, 3, 6, 10, 6], [1, 4, 6, 10, 6], [1, 3, 8, 10, 6]] {
            let options = options.clone().with_layout(layout.clone());
            Plan::new(&spec, &shape, Some(&[3, 6, 14]), DatumType::F32, &options)?;
        }
    }
    Ok(())
}

/// A plan may be made for another machine of the same architecture. Running it fails if this CPU lacks the instruction set.
/// Planning for a missing instruction set without naming a machine fails at once.
#[test]
fn plans_for_other_machines_exist_and_run_where_the_cpu_can() -> TractResult<()> {
    let spec = spec([16, 16], 1, [3, 2, 1]);
    let input = Tensor::zero::<f32>(&[1, 16, 9, 9])?;
    let weights = Tensor::zero::<f32>(&[16, 16, 3, 3])?.into_arc_tensor();
    for machine in Machine::ALL {
        let options = PlanOptions::default().with_machine(*machine);
        if !machine.isa().is_compiled() {
            let error = format!("{:#}", plan(&spec, [9, 9], &options).unwrap_err());
            assert!(error.contains("a build for this architecture has no kernels for it"), "{error}");
            continue;
        }
        let plan = plan(&spec, [9, 9], &options)?;
        assert_eq!(plan.isa(), machine.isa(), "{}", machine.name());
        assert_eq!(plan, self::plan(&spec, [9, 9], &options)?);
        let filter = PackedFilter::pack(&spec, &FilterLayout::Plain, &weights)?;
        let plain = self::plan(&spec, [9, 9], &options.with_layout(FilterLayout::Plain))?;
        let outcome = Layer::new(plain.clone()).run(&input, &filter, None);
        match machine.isa().is_available() {
            true => assert_eq!(outcome?.shape(), [1, 16, 17, 17]),
            false => {
                let error = format!("{:#}", outcome.unwrap_err());
                assert!(error.contains(&format!("isa={}, this cpu does not have it", machine.isa())), "{error}");
                let here = PlanOptions::default().with_isa(machine.isa());
                let error = format!("{:#}", self::plan(&spec, [9, 9], &here).unwrap_err());
                assert!(error.contains("this cpu does not have it"), "{error}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_larger_cache_takes_larger_blocks() -> TractResult<()> {
    let spec = spec([256, 128], 1, [2, 2, 0]);
    let vectors = PlanOptions::default().with_isa(Isa::Avx512).with_strategy(Strategy::DirectChannels);
    let on = |machine| plan(&spec, [112, 112], &vectors.clone().with_machine(machine));
    assert_ne!(on(Machine::GENERIC)?, on(Machine::SAPPHIRE_RAPIDS)?);
    Ok(())
}

#[test]
fn exact_matrix_products_are_available_with_tile_registers_only() {
    for strategy in Strategy::ALL {
        let needs_them = matches!(strategy, Strategy::MatrixPixels | Strategy::MatrixPlanes);
        let has_all = !needs_them || Isa::Amx.is_available();
        assert_eq!(strategy.is_available(), has_all, "{strategy}");
        assert_eq!(strategy.is_available_in(Precision::F16), has_all, "{strategy}");
        assert!(strategy.is_available_in(Precision::Bf16) || !has_all, "{strategy}");
    }
}

/// Vectors that multiply pairs of bf16 are taken where they are estimated to be faster than exact products.
#[test]
fn vectors_of_bf16_are_chosen_where_they_are_faster() -> TractResult<()> {
    let zen4 = PlanOptions::default().with_machine(Machine::ZEN4);
    let bf16 = zen4.clone().with_precision(Precision::Bf16);
    let cases = [
        (forward([256, 256], 1, [1, 1, 0]), [28, 28], Some(Strategy::MatrixPlanes)),
        (forward([64, 128], 1, [3, 2, 1]), [56, 56], Some(Strategy::MatrixPixels)),
        (spec([128, 64], 1, [2, 2, 0]), [56, 56], Some(Strategy::MatrixPixels)),
        // A third of the products, exact, take less time than all of them at twice the rate.
        (forward([128, 128], 1, [3, 1, 1]), [28, 28], None),
        // Products of few output channels wait for their operands.
        (forward([32, 16], 1, [3, 1, 1]), [224, 224], None),
        (forward([16, 1], 1, [1, 1, 0]), [224, 224], None),
    ];
    for (spec, spatial, rounded) in cases {
        let plan = plan(&spec, spatial, &bf16)?;
        match rounded {
            Some(strategy) => {
                assert_eq!((plan.strategy(), plan.precision()), (strategy, Precision::Bf16), "{}", plan.explain())
            }
            None => {
                let reason = format!("{} on avx512 has no kernels for bf16", plan.strategy());
                assert_eq!(plan.exact_because(), Some(&*reason), "{}", plan.explain());
            }
        }
        let exact = self::plan(&spec, spatial, &zen4)?;
        assert!(exact.precision() == Precision::Exact && exact.exact_because().is_none());
        // Neither vectors of 256 bits nor those of a machine that lacks the instruction have it.
        for other in [bf16.clone().with_isa(Isa::Avx2), bf16.clone().with_machine(Machine::XEON)] {
            let plan = self::plan(&spec, spatial, &other)?;
            assert!(plan.precision() == Precision::Exact && plan.exact_because().is_some(), "{}", plan.explain());
        }
        // Only one limb is multiplied at that rate.
        let f16 = self::plan(&spec, spatial, &zen4.clone().with_precision(Precision::F16))?;
        assert_eq!((f16.precision(), f16.strategy()), (Precision::Exact, exact.strategy()));
    }
    Ok(())
}

/// The layers of the tests of `precision` are faster rounded, whatever a precision's products.
#[test]
fn layers_of_tests_are_rounded_where_they_can_be() -> TractResult<()> {
    let with_tile_registers = [Machine::SAPPHIRE_RAPIDS, Machine::EMERALD_RAPIDS, Machine::GRANITE_RAPIDS];
    let rounding = with_tile_registers.into_iter().cartesian_product([Precision::Bf16, Precision::F16]);
    for (machine, precision) in rounding.chain([(Machine::ZEN4, Precision::Bf16)]) {
        for (spec, spatial) in [(forward([64, 64], 1, [3, 2, 1]), [17, 16]), (spec([64, 32], 1, [4, 2, 1]), [9, 8])] {
            let options = PlanOptions::default().with_machine(machine).with_precision(precision);
            let plan = plan(&spec, spatial, &options)?;
            assert_eq!(plan.precision(), precision, "{}: {}", machine.name(), plan.explain());
        }
    }
    Ok(())
}

/// The build has no kernels of other architectures, so planning for them fails.
#[test]
fn other_architectures_are_refused() {
    let error = plan(&spec([16, 16], 1, [3, 2, 1]), [9, 9], &on(Isa::Neon)).unwrap_err().to_string();
    assert!(error.contains("isa=neon, a build for this architecture has no kernels for it"), "{error}");
}

#[test]
fn the_strategies_are_documented_in_their_order() {
    let (_, section) = include_str!("../../docs/knobs.md").split_once("## Strategies").expect("the section");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert!(rows.eq(Strategy::ALL.iter().map(|strategy| strategy.name())), "docs/knobs.md, Strategies");
}

#[test]
fn planes_that_compete_for_l1_are_copied() -> TractResult<()> {
    let options = PlanOptions::default().with_machine(Machine::ZEN3);
    let layer = forward([24, 32], 1, [1, 1, 0]);
    // 448 KiB are a multiple of 4 KiB, 441 are not.
    let variant = |columns| plan(&layer, [256, columns], &options).map(|plan| plan.variant());
    assert_eq!(variant(448)?, "copy per shift, rows from registers");
    assert_eq!(variant(441)?, "in place, rows from registers");
    Ok(())
}

/// Each panel of output channels reads the copy, so that it pays for many of them.
#[test]
fn input_of_many_output_channels_is_copied_in_tile_order() -> TractResult<()> {
    let options = PlanOptions::default().with_machine(Machine::ZEN3);
    let variant = |layer| plan(&layer, [56, 42], &options).map(|plan| plan.variant());
    let in_order = "tile order, rows from registers";
    assert_eq!(variant(forward([384, 512], 1, [1, 1, 0]))?, in_order);
    assert_eq!(variant(spec([48, 384], 1, [2, 2, 0]))?, in_order);
    assert_ne!(variant(forward([384, 12], 1, [1, 1, 0]))?, in_order);
    Ok(())
}

/// L2 does not hold these planes. Reading a few positions of each at a time would take longer than the products.
#[test]
fn planes_beyond_l2_are_read_in_long_runs() -> TractResult<()> {
    let options = PlanOptions::default().with_machine(Machine::ZEN3);
    let chosen = |layer: &DeconvSpec, sizes: [usize; 2]| plan(layer, sizes, &options).map(|plan| plan.strategy());
    assert_eq!(chosen(&forward([320, 8], 1, [1, 1, 0]), [100, 133])?, Strategy::DirectPositions);
    assert_eq!(chosen(&forward([320, 80], 1, [1, 1, 0]), [160, 320])?, Strategy::DirectPositions);
    Ok(())
}

#[test]
fn channels_of_a_pixel_are_computed_together() -> TractResult<()> {
    let options = PlanOptions::default().with_machine(Machine::ZEN3);
    for (channels, expected) in [(16, false), (48, true)] {
        let layer = DeconvSpec { data_format: DataFormat::Nxc, ..forward([16, channels], 1, [1, 1, 0]) };
        let explained = plan(&layer, [128, 224], &options)?.explain();
        assert_eq!(explained.contains("all channels of a pixel together"), expected, "{explained}");
    }
    Ok(())
}

/// The steps behind a layer meet each channel of each pixel once, however many channels are computed at a time.
#[test]
fn whole_pixels_are_finished_once() -> TractResult<()> {
    let mut random = Random(5);
    for (channels, group) in [(48, 1), (96, 1), (200, 1), (192, 2)] {
        let spec = DeconvSpec { data_format: DataFormat::Nxc, ..forward([8 * group, channels], group, [1, 1, 0]) };
        let x = random.small_integers(DatumType::F32, &[1, 20, 30, 8 * group]);
        let w = random.small_integers(DatumType::F32, &spec.filter_shape()).into_arc_tensor();
        let residual = random.small_integers(DatumType::F32, &[1, 20, 30, channels]);
        let [factor, term] = [1, 2].map(|_| random.small_integers(DatumType::F32, &[channels]).into_arc_tensor());
        let steps = [Step::Affine { factor, term }, Step::Add, Step::Activation(Activation::Max(-2.0))];
        let run = |strategy: Strategy| {
            let plan = plan(&spec, [20, 30], &PlanOptions::default().with_strategy(strategy))?;
            let filter = PackedFilter::pack(&spec, &plan.filter_layout(), &w)?;
            Layer::new(plan).run_with_epilogue(&x, &filter, None, &steps, &[&residual])
        };
        // Sums of small integers are exact.
        let (found, expected) = (run(Strategy::DirectChannels)?, run(Strategy::Reference)?);
        expected.close_enough(&found, Approximation::Exact).with_context(|| format!("{channels} channels"))?;
    }
    Ok(())
}

/// A layout of transformed weights serves a single position, which has no tiles.
#[test]
fn a_layout_of_transformed_weights_serves_single_positions() -> TractResult<()> {
    let symbols = SymbolScope::default();
    let mut transformed = 0;
    for isa in instruction_sets() {
        for (inputs, outputs) in [(8, 2), (8, 4), (8, 8), (16, 16), (64, 64), (24, 40)] {
            for format in [DataFormat::Ncx, DataFormat::Nxc] {
                let size = symbols.new_with_prefix("size").to_dim();
                let spec = DeconvSpec {
                    data_format: format,
                    strides: tvec!(3),
                    dilations: tvec!(3),
                    padding: Padding::OutputShape { shape: OutputShape::Input(tvec!(size)), extra: Side::Begin },
                    ..unpadded(Direction::Transposed, (inputs, outputs, 1), &[4], 1)
                };
                let size = symbols.new_with_prefix("size").to_dim();
                let open = format.shape(1.to_dim(), inputs.to_dim(), tvec!(size));
                let layout = Plan::shape_free_layout(&spec, &open, DatumType::F32, &on(isa));
                transformed += usize::from(matches!(layout, FilterLayout::Tiles { .. }));
                let options = on(isa).with_layout(layout);
                for sizes in [(1, 1), (1, 10), (2, 1), (100, 300)] {
                    let shape = format.shape(1, inputs, tvec!(sizes.0));
                    Plan::new(&spec, &shape, Some(&[sizes.1]), DatumType::F32, &options)
                        .with_context(|| format!("{isa}, {inputs} to {outputs} channels, {sizes:?}, {options:?}"))?;
                }
            }
        }
    }
    assert!(transformed > 0, "no layout has transformed weights");
    Ok(())
}
