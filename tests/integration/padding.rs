//! Folding of `Pad` and `Slice` nodes into the padding of a convolution beside them.

use crate::common::proto::{Dim, Model, Node};
use crate::common::random::Random;
use crate::common::run::{Stage, load, run};
use tract_core::internal::*;
use tract_core::ops::array::{Pad, Slice};
use tract_deconv::GroupedDeconv;
use tract_onnx::pb::ModelProto;

/// A convolution between a `Pad` and a `Slice`, over inputs of 4 channels, H rows and 7 columns.
#[derive(Clone)]
struct Case {
    op: &'static str,
    /// The convolution's strides, dilations and pads.
    geometry: [[i64; 2]; 3],
    auto_pad: &'static str,
    /// The `Pad`'s pads of the four axes, before and after.
    pads: [i64; 8],
    constant: f32,
    mode: &'static str,
    /// The axis, the first position and the end that a `Slice` keeps.
    slice: Option<[i64; 3]>,
    /// Whether the model returns what the `Pad` and the convolution give, too.
    all_outputs: bool,
}

impl Case {
    fn new(op: &'static str, strides: [i64; 2]) -> Case {
        Case {
            op,
            geometry: [strides, [1, 1], [0; 2]],
            auto_pad: "NOTSET",
            pads: [0; 8],
            constant: 0.0,
            mode: "constant",
            slice: None,
            all_outputs: false,
        }
    }

    fn pads(self, pads: [i64; 8]) -> Case {
        Case { pads, ..self }
    }

    fn slice(self, axis: i64, start: i64, end: i64) -> Case {
        Case { slice: Some([axis, start, end]), ..self }
    }

    fn proto(&self) -> ModelProto {
        let mut random = Random(7);
        let [strides, dilations, pads] = self.geometry;
        let mut node = Node::new(self.op).named("c").inputs(&["p", "w", "b"]).output("c").ints("strides", &strides);
        node = node.ints("dilations", &dilations);
        node = match self.auto_pad {
            "NOTSET" => node.ints("pads", &[pads, pads].concat()),
            rule => node.string("auto_pad", rule),
        };
        let mut model = Model::opset(13)
            .input("x", DatumType::F32, &[Dim::from(2), Dim::from(4), Dim::from("H"), Dim::from(7)])
            .initializer("w", &random.tensor(DatumType::F32, &[4, 4, 3, 2]))
            .initializer("b", &random.tensor(DatumType::F32, &[4]))
            .initializer("pads", &tensor1(&self.pads))
            .initializer("value", &tensor0(self.constant));
        let pad = Node::new("Pad").named("p").inputs(&["x", "pads"]).output("p").string("mode", self.mode);
        model = model.node(if self.mode == "constant" { pad.input("value") } else { pad }).node(node);
        let mut last = "c";
        if let Some([axis, start, end]) = self.slice {
            model = model
                .initializer("starts", &tensor1(&[start]))
                .initializer("ends", &tensor1(&[end]))
                .initializer("axes", &tensor1(&[axis]))
                .node(Node::new("Slice").named("s").inputs(&["c", "starts", "ends", "axes"]).output("s"));
            last = "s";
        }
        if self.all_outputs {
            model = model.output("p").output("c");
        }
        model.output(last).build()
    }

    /// Checks which nodes are left when the model is simplified, and that its numbers stay.
    fn leaves(&self, pads: usize, slices: usize) -> TractResult<()> {
        let proto = self.proto();
        let model = load(&proto)?.into_decluttered()?;
        let count = |is: fn(&TypedNode) -> bool| model.nodes().iter().filter(|node| is(node)).count();
        assert_eq!((count(|n| n.op_is::<Pad>()), count(|n| n.op_is::<Slice>())), (pads, slices), "{model}");
        assert_eq!(count(|n| n.op_is::<GroupedDeconv>()), 1, "{model}");
        for height in [1, 5, 20] {
            let x = Random(3).tensor(DatumType::F32, &[2, 4, height, 7]);
            let plain = run(Stage::Typed.of(load(&proto)?)?, std::slice::from_ref(&x))?;
            let folded = run(Stage::Optimised.of(load(&proto)?)?, &[x])?;
            for (plain, folded) in plain.iter().zip(&folded) {
                // Another size may have another strategy, which rounds otherwise.
                plain.close_enough(folded, Approximation::Approximate).with_context(|| format!("H={height}"))?;
            }
        }
        Ok(())
    }
}

/// Pads of both spatial axes, which differ at the four sides.
const SPATIAL: [i64; 8] = [0, 0, 2, 3, 0, 0, 4, 1];

#[test]
fn a_pad_before_a_forward_convolution_becomes_padding() -> TractResult<()> {
    for strides in [[1, 1], [2, 1], [2, 3]] {
        let case = Case::new("Conv", strides).pads(SPATIAL);
        case.leaves(0, 0)?;
        Case { geometry: [strides, [2, 1], [1, 2]], ..case }.leaves(0, 0)?;
    }
    Ok(())
}

/// With a stride, SAME depends on the size, which is open.
#[test]
fn a_pad_before_same_becomes_padding_where_that_is_known() -> TractResult<()> {
    for auto_pad in ["SAME_UPPER", "SAME_LOWER"] {
        let case = |strides| Case { auto_pad, ..Case::new("Conv", strides).pads(SPATIAL) };
        case([1, 1]).leaves(0, 0)?;
        case([2, 1]).leaves(1, 0)?;
        // The size of the columns is known.
        case([1, 2]).leaves(0, 0)?;
        case([1, 3]).leaves(0, 0)?;
    }
    Ok(())
}

#[test]
fn a_pad_before_a_transposed_convolution_becomes_negative_padding() -> TractResult<()> {
    for strides in [[1, 1], [2, 1], [2, 3]] {
        let case = Case::new("ConvTranspose", strides).pads(SPATIAL);
        case.leaves(0, 0)?;
        Case { geometry: [strides, [2, 1], [1, 2]], ..case }.leaves(0, 0)?;
    }
    Ok(())
}

#[test]
fn a_slice_after_a_convolution_becomes_padding() -> TractResult<()> {
    for op in ["Conv", "ConvTranspose"] {
        for strides in [[1, 1], [2, 2]] {
            let case = Case::new(op, strides).pads(SPATIAL);
            case.clone().slice(2, 1, -1).leaves(0, 0)?;
            case.clone().slice(2, 1, i64::MAX).leaves(0, 0)?;
            case.slice(3, 1, 3).leaves(0, 0)?;
        }
    }
    Ok(())
}

#[test]
fn what_is_no_padding_stays() -> TractResult<()> {
    for op in ["Conv", "ConvTranspose"] {
        let case = Case::new(op, [1, 1]).pads(SPATIAL);
        Case { constant: 0.5, ..case.clone() }.leaves(1, 0)?;
        Case { mode: "edge", ..case.clone() }.leaves(1, 0)?;
        case.clone().pads([1, 0, 2, 3, 0, 0, 4, 1]).leaves(1, 0)?;
        // the channels
        case.clone().slice(1, 1, 3).leaves(0, 1)?;
        // `Pad` and convolution are outputs of the model
        Case { all_outputs: true, ..case.slice(2, 1, -1) }.leaves(1, 1)?;
    }
    Ok(())
}
