//! Builders of ONNX models in memory, with nodes of any domain and attributes of any type.

use tract_core::internal::*;
use tract_onnx::pb;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::tensor_shape_proto::dimension;

/// A dimension of a graph input: a size or a symbol.
#[derive(Clone, Debug)]
pub enum Dim {
    Size(usize),
    Symbol(String),
}

impl From<usize> for Dim {
    fn from(size: usize) -> Dim {
        Dim::Size(size)
    }
}

impl From<&str> for Dim {
    fn from(symbol: &str) -> Dim {
        Dim::Symbol(symbol.into())
    }
}

/// Returns sizes as dimensions.
pub fn sizes(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|d| Dim::Size(*d)).collect()
}

/// A node under construction.
#[derive(Clone, Debug)]
pub struct Node(pb::NodeProto);

impl Node {
    /// Creates a node of the standard domain, named after its operator.
    pub fn new(op_type: &str) -> Node {
        Node(pb::NodeProto { op_type: op_type.into(), name: op_type.to_lowercase(), ..Default::default() })
    }

    pub fn named(mut self, name: &str) -> Node {
        self.0.name = name.into();
        self
    }

    pub fn domain(mut self, domain: &str) -> Node {
        self.0.domain = domain.into();
        self
    }

    pub fn inputs(mut self, names: &[&str]) -> Node {
        self.0.input = names.iter().map(|n| n.to_string()).collect();
        self
    }

    pub fn input(mut self, name: &str) -> Node {
        self.0.input.push(name.into());
        self
    }

    pub fn output(self, name: &str) -> Node {
        self.outputs(&[name])
    }

    pub fn outputs(mut self, names: &[&str]) -> Node {
        self.0.output = names.iter().map(|n| n.to_string()).collect();
        self
    }

    fn attribute(mut self, name: &str, kind: AttributeType, fill: impl FnOnce(&mut pb::AttributeProto)) -> Node {
        let mut attribute = pb::AttributeProto { name: name.into(), r#type: kind as i32, ..Default::default() };
        fill(&mut attribute);
        self.0.attribute.push(attribute);
        self
    }

    pub fn int(self, name: &str, value: i64) -> Node {
        self.attribute(name, AttributeType::Int, |a| a.i = value)
    }

    pub fn ints(self, name: &str, values: &[i64]) -> Node {
        self.attribute(name, AttributeType::Ints, |a| a.ints = values.to_vec())
    }

    pub fn float(self, name: &str, value: f32) -> Node {
        self.attribute(name, AttributeType::Float, |a| a.f = value)
    }

    pub fn floats(self, name: &str, values: &[f32]) -> Node {
        self.attribute(name, AttributeType::Floats, |a| a.floats = values.to_vec())
    }

    pub fn string(self, name: &str, value: &str) -> Node {
        self.attribute(name, AttributeType::String, |a| a.s = value.as_bytes().to_vec())
    }

    /// Adds a body, which is the graph of a model.
    pub fn graph(self, name: &str, body: Model) -> Node {
        self.attribute(name, AttributeType::Graph, |a| a.g = body.0.graph)
    }

    /// Adds a list in the form of some exporters, as one string: `"2,2"`.
    pub fn comma_string(self, name: &str, values: &[i64]) -> Node {
        let joined: Vec<String> = values.iter().map(|v| v.to_string()).collect();
        self.string(name, &joined.join(","))
    }
}

/// A model of one graph under construction.
#[derive(Clone, Debug)]
pub struct Model(pb::ModelProto);

impl Default for Model {
    fn default() -> Model {
        Model::opset(11)
    }
}

impl Model {
    /// Creates an empty graph that imports the standard operators at this version.
    pub fn opset(version: i64) -> Model {
        Model(pb::ModelProto {
            ir_version: 8,
            opset_import: vec![pb::OperatorSetIdProto { domain: String::new(), version }],
            graph: Some(pb::GraphProto { name: "graph".into(), ..Default::default() }),
            ..Default::default()
        })
    }

    /// Returns a model of one node, with an input `x`, a constant filter `w` and an output `y`.
    pub fn of_node(node: Node, x: &Tensor, w: &Tensor) -> pb::ModelProto {
        Model::opset(11)
            .input("x", x.datum_type(), &sizes(x.shape()))
            .initializer("w", w)
            .node(node.inputs(&["x", "w"]).output("y"))
            .output("y")
            .build()
    }

    fn graph(&mut self) -> &mut pb::GraphProto {
        self.0.graph.get_or_insert_with(Default::default)
    }

    /// Adds a constant.
    pub fn initializer(self, name: &str, tensor: &Tensor) -> Model {
        let kind = data_type(tensor.datum_type());
        self.raw_initializer(name, kind, tensor.shape(), tensor.as_bytes().to_vec())
    }

    /// Adds a constant given by its bytes, for element types that tract lacks.
    pub fn raw_initializer(mut self, name: &str, kind: DataType, shape: &[usize], bytes: Vec<u8>) -> Model {
        self.graph().initializer.push(pb::TensorProto {
            name: name.into(),
            data_type: kind as i32,
            dims: shape.iter().map(|d| *d as i64).collect(),
            raw_data: bytes,
            ..Default::default()
        });
        self
    }

    /// Adds a graph input.
    pub fn input(self, name: &str, dt: DatumType, shape: &[Dim]) -> Model {
        self.raw_input(name, data_type(dt), shape)
    }

    /// Adds a graph input of any of ONNX's element types.
    pub fn raw_input(mut self, name: &str, kind: DataType, shape: &[Dim]) -> Model {
        let dim = shape
            .iter()
            .map(|dim| pb::tensor_shape_proto::Dimension {
                value: Some(match dim {
                    Dim::Size(size) => dimension::Value::DimValue(*size as i64),
                    Dim::Symbol(name) => dimension::Value::DimParam(name.clone()),
                }),
                ..Default::default()
            })
            .collect();
        self.graph().input.push(value_info(name, Some((kind, pb::TensorShapeProto { dim }))));
        self
    }

    pub fn node(mut self, node: Node) -> Model {
        let domain = node.0.domain.clone();
        if !self.0.opset_import.iter().any(|import| import.domain == domain) {
            self.0.opset_import.push(pb::OperatorSetIdProto { domain, version: 1 });
        }
        self.graph().node.push(node.0);
        self
    }

    /// Adds a graph output, whose type is that of its node.
    pub fn output(mut self, name: &str) -> Model {
        self.graph().output.push(value_info(name, None));
        self
    }

    pub fn build(self) -> pb::ModelProto {
        self.0
    }
}

fn value_info(name: &str, fact: Option<(DataType, pb::TensorShapeProto)>) -> pb::ValueInfoProto {
    pb::ValueInfoProto {
        name: name.into(),
        r#type: fact.map(|(kind, shape)| pb::TypeProto {
            value: Some(pb::type_proto::Value::TensorType(pb::type_proto::Tensor {
                elem_type: kind as i32,
                shape: Some(shape),
            })),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Returns ONNX's name of an element type.
pub fn data_type(dt: DatumType) -> DataType {
    match dt {
        DatumType::F16 => DataType::Float16,
        DatumType::F32 => DataType::Float,
        DatumType::F64 => DataType::Double,
        DatumType::I8 => DataType::Int8,
        DatumType::U8 => DataType::Uint8,
        DatumType::I16 => DataType::Int16,
        DatumType::U16 => DataType::Uint16,
        DatumType::I32 => DataType::Int32,
        DatumType::U32 => DataType::Uint32,
        DatumType::I64 => DataType::Int64,
        DatumType::U64 => DataType::Uint64,
        DatumType::Bool => DataType::Bool,
        other => panic!("no test needs {other:?} in a proto"),
    }
}
