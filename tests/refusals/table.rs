//! The tables of inputs that must be refused: building rows and checking them.

use crate::common::proto::{Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::{Stage, guarded, load, run};
use tract_core::internal::*;
use tract_onnx::pb::ModelProto;

pub const NAME: &str = "upsample7";

/// A node with its operands, which is legal until a test changes something.
#[derive(Clone, Debug)]
pub struct Layer {
    pub node: Node,
    /// Data, filter and further operands: name, value, and whether it is a constant of the model.
    pub operands: Vec<(&'static str, Tensor, bool)>,
    /// The declared shapes of graph inputs, if they are not those of the tensors.
    pub declared: Vec<(&'static str, Vec<crate::common::proto::Dim>)>,
}

impl Layer {
    /// Creates a node that reads `x` and a constant `w`.
    pub fn new(domain: &str, op: &str, x: &[usize], w: &[usize]) -> Layer {
        Layer::typed(DatumType::F32, domain, op, x, w)
    }

    pub fn typed(dt: DatumType, domain: &str, op: &str, x: &[usize], w: &[usize]) -> Layer {
        let mut random = Random(x.len() as u64);
        let node = Node::new(op).named(NAME).domain(domain).inputs(&["x", "w"]).output("y");
        let operands = vec![("x", random.tensor(dt, x), false), ("w", random.tensor(dt, w), true)];
        Layer { node, operands, declared: vec![] }
    }

    pub fn node(mut self, change: impl FnOnce(Node) -> Node) -> Layer {
        self.node = change(self.node);
        self
    }

    pub fn ints(self, name: &str, values: &[i64]) -> Layer {
        self.node(|node| node.ints(name, values))
    }

    pub fn int(self, name: &str, value: i64) -> Layer {
        self.node(|node| node.int(name, value))
    }

    pub fn float(self, name: &str, value: f32) -> Layer {
        self.node(|node| node.float(name, value))
    }

    pub fn floats(self, name: &str, values: &[f32]) -> Layer {
        self.node(|node| node.floats(name, values))
    }

    pub fn text(self, name: &str, value: &str) -> Layer {
        self.node(|node| node.string(name, value))
    }

    /// Adds a constant as input of the node.
    pub fn constant(self, name: &'static str, value: Tensor) -> Layer {
        self.operand(name, value, true)
    }

    /// Adds a graph input as input of the node.
    pub fn input(self, name: &'static str, value: Tensor) -> Layer {
        self.operand(name, value, false)
    }

    fn operand(mut self, name: &'static str, value: Tensor, constant: bool) -> Layer {
        self.operands.push((name, value, constant));
        self.node(|node| node.input(name))
    }

    /// Makes an operand a graph input and declares its dimensions.
    pub fn declare(mut self, name: &'static str, dims: &[&str]) -> Layer {
        let dims = dims.iter().map(|d| d.parse::<usize>().map_or_else(|_| (*d).into(), Into::into)).collect();
        self.operands.iter_mut().filter(|o| o.0 == name).for_each(|o| o.2 = false);
        self.declared.push((name, dims));
        self
    }

    /// Replaces the value of an operand.
    pub fn with(mut self, name: &str, value: Tensor) -> Layer {
        self.operands.iter_mut().filter(|o| o.0 == name).for_each(|o| o.1 = value.clone());
        self
    }

    fn proto(&self) -> ModelProto {
        let mut model = Model::opset(11);
        for (name, value, constant) in &self.operands {
            let declared = self.declared.iter().find(|d| d.0 == *name);
            model = match (constant, declared) {
                (true, _) => model.initializer(name, value),
                (false, Some((_, dims))) => model.input(name, value.datum_type(), dims),
                (false, None) => model.input(name, value.datum_type(), &sizes(value.shape())),
            };
        }
        model.node(self.node.clone()).output("y").build()
    }

    fn inputs(&self) -> Vec<Tensor> {
        self.operands.iter().filter(|o| !o.2).map(|o| o.1.clone()).collect()
    }
}

/// A layer and the message of the innermost cause of its error.
///
/// Messages of tract's own, which come before any node is asked, end in `…` and are compared up to
/// there.
pub type Row = (Layer, &'static str);

/// Checks that each row is refused at every stage with its message.
///
/// The innermost cause must be exactly the message. The whole error must name the node, and no
/// cause may repeat another.
pub fn check(what: &str, rows: &[Row]) {
    let mut wrong = vec![];
    for (ix, (layer, expected)) in rows.iter().enumerate() {
        for stage in Stage::ALL {
            let (proto, inputs) = (layer.proto(), layer.inputs());
            let result = guarded(|| {
                Ok(match load(&proto).and_then(|model| run(stage.of(model)?, &inputs)) {
                    Ok(_) => vec![],
                    Err(error) => error.chain().map(|cause| cause.to_string()).collect::<Vec<String>>(),
                })
            });
            let problem = match result {
                Err(failure) => Some(failure.to_string()),
                Ok(causes) if causes.is_empty() => Some("it was accepted".to_string()),
                Ok(causes) => {
                    let innermost = causes.last().map_or("", |cause| cause);
                    let whole = causes.join(": ");
                    if let Some(words) = expected.strip_suffix('…') {
                        (!innermost.starts_with(words)).then(|| format!("said {innermost:?}"))
                    } else if innermost != *expected {
                        Some(format!("said {innermost:?}"))
                    } else if !whole.contains(NAME) {
                        Some(format!("the node has no name in {whole:?}"))
                    } else if whole.matches(innermost).count() != 1 {
                        Some(format!("the same twice in {whole:?}"))
                    } else {
                        None
                    }
                }
            };
            if let Some(problem) = problem {
                wrong.push(format!("row {ix}, {stage:?}: {problem}, expected {expected:?}"));
                break;
            }
        }
    }
    eprintln!("refusals: {what}, {} rows", rows.len());
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}
