//! "Send and Sync" of the crate's documentation. The compiler checks it for every public type.

use tract_deconv::Isa;
use tract_deconv::explain::Concrete;
use tract_deconv::op::Bias;
use tract_deconv::rewrite::Replace;
use tract_deconv::to_tract::{KeptFromTract, ToTract};
use tract_deconv::{
    Activation, BetweenLayers, ByteSum, ByteTable, DataFormat, DeconvSpec, Dialect, Direction, Explanation,
    FilterFormat, GroupedDeconv, If, Layer, LeftToTract, Machine, Measured, OptDynamicQuantise, OptF16Arithmetic,
    OptFourier, OptGroupedDeconv, OptIf, OptNormalise, OptQuantise, OptQuantisedDeconv, OptReduce, OptResize,
    OptSoftmax, OptTranspose, Options, OutputShape, Padding, Pass, Plan, PlanOptions, Precision, QuantisedDeconv, Side,
    Step, Strategy, Tuning,
};
use tract_deconv::{FilterLayout, PackedFilter};

fn anywhere<T: Send + Sync + 'static>() -> &'static str {
    std::any::type_name::<T>()
}

macro_rules! anywhere {
    ($($t:ty),* $(,)?) => { [$((stringify!($t), anywhere::<$t>())),*] };
}

#[test]
fn public_types_go_to_and_are_shared_by_any_thread() {
    let checked = anywhere![
        Activation,
        BetweenLayers,
        Bias,
        ByteSum,
        ByteTable,
        Concrete,
        DataFormat,
        DeconvSpec,
        Dialect,
        Direction,
        Explanation,
        FilterFormat,
        FilterLayout,
        GroupedDeconv,
        If,
        Isa,
        KeptFromTract,
        Layer,
        LeftToTract,
        Machine,
        Measured,
        OptDynamicQuantise,
        OptF16Arithmetic,
        OptFourier,
        OptGroupedDeconv,
        OptIf,
        OptNormalise,
        OptQuantise,
        OptQuantisedDeconv,
        OptReduce,
        OptResize,
        OptSoftmax,
        OptTranspose,
        Options,
        OutputShape,
        PackedFilter,
        Padding,
        Pass,
        Plan,
        PlanOptions,
        Precision,
        QuantisedDeconv,
        Replace,
        Side,
        Step,
        Strategy,
        ToTract,
        Tuning,
    ];
    // The list must contain each type that `lib.rs` exports at the root.
    let root = include_str!("../../src/lib.rs");
    let named = root.split("\npub use ").skip(1).filter_map(|item| Some(item.split_once(';')?.0));
    let types = named.flat_map(|item| item.split(|c: char| !c.is_alphanumeric())).filter(|word| {
        word.starts_with(char::is_uppercase)
            && !["WithConv", "WithDeconv", "WithDeconvOptions", "WithLeniency"].contains(word)
    });
    let mut seen = 0;
    for word in types {
        assert!(checked.iter().any(|(name, of)| *name == word && of.ends_with(word)), "{word} is not checked");
        seen += 1;
    }
    assert!(seen >= 15, "only {seen} types at the root");
}
