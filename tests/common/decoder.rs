//! A small decoder whose layers run on different strategies, with symbolic batch, height and width.

use super::proto::{Model, Node};
use super::random::Random;
use super::run::load;
use tract_core::internal::*;

/// The channels of its input.
pub const CHANNELS: usize = 12;

type Layer = (&'static str, [usize; 4], usize, &'static [i64], &'static [i64], bool);

/// Name, filter, groups, strides, pads, and whether there is a bias.
const LAYERS: [Layer; 4] = [
    ("dense", [12, 32, 4, 4], 1, &[2, 2], &[1, 1, 1, 1], true),
    ("depthwise", [32, 1, 3, 3], 32, &[1, 1], &[1, 1, 1, 1], false),
    ("grouped", [32, 4, 2, 2], 2, &[2, 2], &[0, 0, 0, 0], true),
    ("picture", [8, 3, 7, 7], 1, &[2, 2], &[3, 3, 3, 3], false),
];

/// Returns the decoder, loaded and optimised.
pub fn decoder() -> TractResult<Arc<TypedRunnableModel>> {
    let mut random = Random(41);
    let mut model =
        Model::opset(11).input("x", f32::datum_type(), &["N".into(), CHANNELS.into(), "H".into(), "W".into()]);
    let mut from = "x".to_string();
    for (name, filter, group, strides, pads, bias) in LAYERS {
        let (w, b) = (format!("{name}.w"), format!("{name}.b"));
        model = model.initializer(&w, &random.tensor(f32::datum_type(), &filter));
        let mut node = Node::new("ConvTranspose").named(name).inputs(&[&from, &w]).output(name);
        if bias {
            model = model.initializer(&b, &random.tensor(f32::datum_type(), &[filter[1] * group]));
            node = node.input(&b);
        }
        model = model.node(node.int("group", group as i64).ints("strides", strides).ints("pads", pads));
        from = name.to_string();
    }
    load(&model.output(&from).build())?.into_optimized()?.into_runnable()
}

/// Returns an input of a size. Its values depend on the size only.
pub fn picture(batch: usize, height: usize, width: usize) -> TValue {
    let seed = (batch * 1000 + height) * 1000 + width;
    Random(seed as u64).tensor(f32::datum_type(), &[batch, CHANNELS, height, width]).into_tvalue()
}
