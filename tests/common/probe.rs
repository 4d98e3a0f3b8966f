//! One ConvTranspose or Conv of the standard domain, with its result by the definition.

use super::oracle::{Expected, Rule, convolve};
use super::proto::{Dim, Model, Node, sizes};
use super::random::Random;
use super::run::{Stage, guarded, load, load_stock, refused, run};
use tract_core::internal::*;
use tract_deconv::spec::Direction;
use tract_onnx::pb::ModelProto;

/// The node's name, which every error must contain.
pub const NAME: &str = "upsample7";

/// A node under test, with random operands.
#[derive(Clone, Debug)]
pub struct Probe {
    pub opset: i64,
    pub node: Node,
    pub x: Tensor,
    /// The declared dimensions of `x`, if they are not its shape.
    pub x_dims: Option<Vec<Dim>>,
    pub w: Tensor,
    /// The declared dimensions of `w`, if they are not its shape. The filter is then an input of
    /// the graph.
    pub w_dims: Option<Vec<Dim>>,
    pub b: Option<Tensor>,
    /// Whether filter and bias are graph inputs.
    pub run_time_weights: bool,
    pub group: usize,
    pub direction: Direction,
}

/// Returns an axis with its stride, dilation, padding at the beginning and output size.
pub fn axis(stride: usize, dilation: usize, pad_begin: i64, output: usize) -> Rule {
    Rule { stride, dilation, pad_begin, output }
}

impl Probe {
    /// Creates a probe with `x` and `w` of these shapes, in f32.
    pub fn new(x: &[usize], w: &[usize]) -> Probe {
        Probe::typed(DatumType::F32, x, w)
    }

    pub fn typed(dt: DatumType, x: &[usize], w: &[usize]) -> Probe {
        let mut random = Random(x.iter().chain(w).fold(7u64, |seed, d| seed.wrapping_mul(31) + *d as u64));
        Probe {
            opset: 11,
            node: Node::new("ConvTranspose").named(NAME).inputs(&["x", "w"]).output("y"),
            x: random.tensor(dt, x),
            x_dims: None,
            w: random.tensor(dt, w),
            w_dims: None,
            b: None,
            run_time_weights: false,
            group: 1,
            direction: Direction::Transposed,
        }
    }

    /// Creates a forward convolution. The first axis of `w` is that of the output channels.
    pub fn conv(dt: DatumType, x: &[usize], w: &[usize]) -> Probe {
        let node = Node::new("Conv").named(NAME).inputs(&["x", "w"]).output("y");
        Probe { node, direction: Direction::Forward, ..Probe::typed(dt, x, w) }
    }

    pub fn opset(mut self, opset: i64) -> Probe {
        self.opset = opset;
        self
    }

    /// Changes the node.
    pub fn node(mut self, change: impl FnOnce(Node) -> Node) -> Probe {
        self.node = change(self.node);
        self
    }

    pub fn ints(self, name: &str, values: &[i64]) -> Probe {
        self.node(|node| node.ints(name, values))
    }

    pub fn int(self, name: &str, value: i64) -> Probe {
        self.node(|node| node.int(name, value))
    }

    pub fn string(self, name: &str, value: &str) -> Probe {
        self.node(|node| node.string(name, value))
    }

    pub fn group(mut self, group: usize) -> Probe {
        self.group = group;
        self.int("group", group as i64)
    }

    /// Adds a bias of `len` values.
    pub fn bias(mut self, len: usize) -> Probe {
        self.b = Some(Random(len as u64).tensor(self.x.datum_type(), &[len]));
        self.node(|node| node.input("b"))
    }

    /// Declares the input's dimensions, which may be symbols.
    pub fn dims(mut self, dims: &[Dim]) -> Probe {
        self.x_dims = Some(dims.to_vec());
        self
    }

    pub fn run_time_weights(mut self) -> Probe {
        self.run_time_weights = true;
        self
    }

    /// Makes the filter a graph input and declares its dimensions, which may be symbols.
    pub fn filter_dims(mut self, dims: &[Dim]) -> Probe {
        (self.run_time_weights, self.w_dims) = (true, Some(dims.to_vec()));
        self
    }

    /// Replaces the input by another one of the same type.
    pub fn with_x(mut self, shape: &[usize]) -> Probe {
        self.x = Random(shape.iter().sum::<usize>() as u64).tensor(self.x.datum_type(), shape);
        self
    }

    pub fn proto(&self) -> ModelProto {
        let dims = self.x_dims.clone().unwrap_or_else(|| sizes(self.x.shape()));
        let mut model = Model::opset(self.opset).input("x", self.x.datum_type(), &dims);
        for (name, tensor) in [("w", Some(&self.w)), ("b", self.b.as_ref())] {
            let Some(tensor) = tensor else { continue };
            model = if self.run_time_weights {
                let declared = self.w_dims.clone().filter(|_| name == "w");
                model.input(name, tensor.datum_type(), &declared.unwrap_or_else(|| sizes(tensor.shape())))
            } else {
                model.initializer(name, tensor)
            };
        }
        model.node(self.node.clone()).output("y").build()
    }

    /// Returns the inputs in the graph's order.
    pub fn inputs(&self) -> Vec<Tensor> {
        let weights = [Some(&self.w), self.b.as_ref()].into_iter().flatten().filter(|_| self.run_time_weights);
        [&self.x].into_iter().chain(weights).cloned().collect()
    }

    /// Returns the definition's result for these axes.
    pub fn expected(&self, rules: &[Rule]) -> Expected {
        let f64s = |tensor: &Tensor| {
            let tensor = tensor.cast_to::<f64>().expect("a float type");
            tensor.to_plain_array_view::<f64>().expect("f64").to_owned()
        };
        let w = f64s(&self.w);
        let mut shape = w.shape().to_vec();
        shape[0] /= self.group;
        shape.insert(0, self.group);
        let mut w = w.into_shape_with_order(shape).expect("same length");
        if self.direction == Direction::Forward {
            w.swap_axes(1, 2);
        }
        let b = self.b.as_ref().map(|b| f64s(b).into_iter().collect::<Vec<f64>>());
        let answer = convolve(self.direction, &f64s(&self.x), &w, b.as_deref(), rules);
        Expected::floats(self.x.datum_type(), answer)
    }

    /// Checks that the plugin gives the definition's result at every stage.
    #[track_caller]
    pub fn gives(&self, rules: &[Rule]) {
        let expected = self.expected(rules);
        for stage in Stage::ALL {
            let got = guarded(|| run(stage.of(load(&self.proto())?)?, &self.inputs()));
            let got = got.unwrap_or_else(|e| panic!("{stage:?}: {e}"));
            expected.check(&got[0]).unwrap_or_else(|e| panic!("{stage:?}: {e}"));
        }
    }

    /// Checks that both the plugin and stock tract give the definition's result.
    #[track_caller]
    pub fn gives_as_stock(&self, rules: &[Rule]) {
        self.gives(rules);
        let expected = self.expected(rules);
        let stock = guarded(|| run(load_stock(&self.proto())?.into_optimized()?, &self.inputs()));
        let stock = stock.unwrap_or_else(|e| panic!("stock tract: {e}"));
        expected.check(&stock[0]).unwrap_or_else(|e| panic!("stock tract: {e}"));
    }

    /// Checks that stock tract does not give the definition's result: it fails, panics or is wrong.
    #[track_caller]
    pub fn stock_fails(&self, rules: &[Rule]) {
        let expected = self.expected(rules);
        let stock = guarded(|| run(load_stock(&self.proto())?.into_optimized()?, &self.inputs()));
        if let Ok(y) = stock {
            assert!(expected.check(&y[0]).is_err(), "stock tract is right here, the table says it is not");
        }
    }

    /// Checks that loading, optimising or running fails, with the node's name and all of these
    /// words.
    #[track_caller]
    pub fn refused(&self, holds: &[&str]) {
        for stage in Stage::ALL {
            for word in [NAME].iter().chain(holds) {
                let result = guarded(|| run(stage.of(load(&self.proto())?)?, &self.inputs()));
                refused(result, &[word]).unwrap_or_else(|e| panic!("{stage:?}: {e}"));
            }
        }
    }
}
