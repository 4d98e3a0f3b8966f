//! Folding of a space-to-depth rearrangement into the strides of the convolution behind it.

use crate::common::proto::{Dim, Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::{Stage, load, load_stock, run};
use tract_core::internal::*;
use tract_core::ops::array::TypedConcat;
use tract_core::ops::downsample::Downsample;
use tract_onnx::pb::ModelProto;

/// A convolution of strided slices of an image, concatenated along the channels.
#[derive(Clone)]
struct Case {
    batch: Dim,
    /// Channels of the image.
    channels: usize,
    /// Its spatial shape.
    image: Vec<usize>,
    /// The step of the slices on each axis.
    block: Vec<i64>,
    /// The first position of each slice.
    slices: Vec<Vec<i64>>,
    kernel: Vec<usize>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    /// Before and after each axis, or the rule of `auto_pad`.
    pads: Result<Vec<i64>, &'static str>,
    group: usize,
    /// Whether the model returns the joint tensor, too.
    joint_is_output: bool,
    datum_type: DatumType,
}

impl Case {
    /// Every offset within a block once, the last axis slowest as in YOLOX.
    fn new(channels: usize, image: &[usize], block: &[i64]) -> Case {
        let rank = image.len();
        let mut slices = vec![vec![]];
        for size in block.iter().rev() {
            let longer = |of: &Vec<i64>| (0..*size).map(|at| [vec![at], of.clone()].concat()).collect::<Vec<_>>();
            slices = slices.iter().flat_map(longer).collect();
        }
        Case {
            batch: 2.into(),
            channels,
            image: image.to_vec(),
            block: block.to_vec(),
            slices,
            kernel: vec![3; rank],
            strides: vec![1; rank],
            dilations: vec![1; rank],
            pads: Ok(vec![1; 2 * rank]),
            group: 1,
            joint_is_output: false,
            datum_type: f32::datum_type(),
        }
    }

    /// The focus layer of YOLOX on a small image.
    fn focus() -> Case {
        Case::new(3, &[14, 18], &[2, 2])
    }

    fn proto(&self) -> ModelProto {
        let mut random = Random(7);
        let joint = self.channels * self.slices.len();
        let filter = [&[5 * self.group, joint / self.group], &self.kernel[..]].concat();
        let image = [vec![self.batch.clone(), self.channels.into()], sizes(&self.image)].concat();
        let mut model = Model::opset(13)
            .input("x", self.datum_type, &image)
            .initializer("w", &random.tensor(self.datum_type, &filter))
            .initializer("b", &random.tensor(self.datum_type, &[5 * self.group]));
        let mut parts = vec![];
        for (i, offsets) in self.slices.iter().enumerate() {
            let mut last = "x".to_string();
            for (ax, (offset, step)) in offsets.iter().zip(&self.block).enumerate() {
                let name = |what: &str| format!("{what}{i}_{ax}");
                let (sliced, [start, end, axis, steps]) = (name("slice"), ["start", "end", "axis", "step"].map(name));
                model = model
                    .initializer(&start, &tensor1(&[*offset]))
                    .initializer(&end, &tensor1(&[i64::MAX]))
                    .initializer(&axis, &tensor1(&[2 + ax as i64]))
                    .initializer(&steps, &tensor1(&[*step]));
                let inputs = [&last, &start, &end, &axis, &steps].map(|name| name.as_str());
                model = model.node(Node::new("Slice").named(&sliced).inputs(&inputs).output(&sliced));
                last = sliced;
            }
            parts.push(last);
        }
        let parts: Vec<&str> = parts.iter().map(|part| part.as_str()).collect();
        let node = Node::new("Conv").named("c").inputs(&["joint", "w", "b"]).output("y");
        let node = node.ints("strides", &self.strides).ints("dilations", &self.dilations);
        let node = match &self.pads {
            Ok(pads) => node.ints("pads", pads),
            Err(rule) => node.string("auto_pad", rule),
        };
        let model = model
            .node(Node::new("Concat").named("joint").inputs(&parts).output("joint").int("axis", 1))
            .node(node.int("group", self.group as i64));
        if self.joint_is_output { model.output("joint") } else { model }.output("y").build()
    }

    /// Checks whether the slices and their concatenation are left, and the numbers against stock tract's.
    fn check(&self, folds: bool) -> TractResult<()> {
        let proto = self.proto();
        let model = load(&proto)?.into_decluttered()?;
        let slices = model.nodes().iter().filter(|node| node.op_is::<Downsample>()).count();
        let joint = model.nodes().iter().filter(|node| node.op_is::<TypedConcat>()).count();
        assert_eq!((slices > 0, joint > 0), (!folds, !folds), "{model}");
        let x = Random(3).tensor(self.datum_type, &[&[2, self.channels], &self.image[..]].concat());
        let want = run(Stage::Optimised.of(load_stock(&proto)?)?, std::slice::from_ref(&x))?;
        let got = run(Stage::Optimised.of(load(&proto)?)?, &[x])?;
        let tolerance = if self.datum_type == f16::datum_type() {
            Approximation::SuperApproximate
        } else {
            Approximation::Approximate
        };
        assert_eq!(want.len(), got.len());
        want.iter().zip(&got).try_for_each(|(want, got)| want.close_enough(got, tolerance))
    }
}

#[test]
fn a_rearrangement_becomes_strides() -> TractResult<()> {
    Case::focus().check(true)?;
    // Axes of the blocks, ranks and channels.
    for (channels, image, block) in [
        (1, &[12, 12][..], &[3, 2][..]),
        (4, &[10, 12], &[1, 4]),
        (3, &[8, 10], &[2, 1]),
        (2, &[24], &[4]),
        (1, &[6, 8, 4], &[2, 2, 2]),
    ] {
        Case::new(channels, image, block).check(true)?;
    }
    Ok(())
}

#[test]
fn the_convolution_may_have_strides_padding_and_any_kernel() -> TractResult<()> {
    for (kernel, strides, pads) in [
        ([1, 1], [1, 1], vec![0; 4]),
        ([2, 3], [2, 1], vec![0, 1, 2, 3]),
        ([3, 1], [3, 2], vec![2, 0, 0, 1]),
        ([5, 4], [1, 2], vec![3, 3, 3, 3]),
    ] {
        Case { kernel: kernel.to_vec(), strides: strides.to_vec(), pads: Ok(pads), ..Case::focus() }.check(true)?;
    }
    Case { datum_type: f64::datum_type(), ..Case::focus() }.check(true)?;
    Case { datum_type: f16::datum_type(), ..Case::focus() }.check(true)
}

#[test]
fn slices_may_come_in_any_order() -> TractResult<()> {
    let focus = Case::focus();
    for order in [[3, 2, 1, 0], [0, 2, 1, 3], [2, 0, 3, 1]] {
        let slices = order.map(|i| focus.slices[i].clone()).to_vec();
        Case { slices, ..focus.clone() }.check(true)?;
    }
    Ok(())
}

/// What is not each offset once, or no forward convolution of one group without dilation, stays.
#[test]
fn other_slices_and_convolutions_stay() -> TractResult<()> {
    let focus = Case::focus();
    Case { slices: focus.slices[..3].to_vec(), ..focus.clone() }.check(false)?;
    let twice = [0, 1, 2, 2].map(|i| focus.slices[i].clone()).to_vec();
    Case { slices: twice, ..focus.clone() }.check(false)?;
    Case { dilations: vec![2, 1], ..focus.clone() }.check(false)?;
    Case { group: 2, ..focus.clone() }.check(false)?;
    Case { pads: Err("SAME_UPPER"), strides: vec![2, 2], ..focus.clone() }.check(false)?;
    Case { joint_is_output: true, ..focus.clone() }.check(false)?;
    Case::new(5, &[14, 18], &[2, 2]).check(false)
}

/// tract joins no slices of an image whose size is open. The batch may be.
#[test]
fn the_batch_may_be_symbolic() -> TractResult<()> {
    Case { batch: "N".into(), ..Case::focus() }.check(true)
}
