//! NNEF: dumps and loads [`GroupedDeconv`], with every field of its spec (feature `nnef`).
//!
//! ```
//! use tract_deconv::WithDeconv;
//! use tract_nnef::internal::*;
//!
//! # use tract_onnx::prelude::InferenceModelExt;
//! # fn main() -> TractResult<()> {
//! # let model = tract_onnx::onnx().with_deconv().model_for_path("models/upscale4/model.onnx")?.into_typed()?;
//! let nnef = tract_nnef::nnef().with_deconv();
//! let mut tar = vec![];
//! nnef.write_to_tar(&model.into_decluttered()?, &mut tar)?;
//! let again = nnef.model_for_read(&mut &*tar)?;
//! # Ok(())
//! # }
//! ```
//!
//! The dumper prefers NNEF's own fragments, if fusion is not disabled. Any tract loads these, with
//! this crate or without.
//!
//! - A transposed convolution becomes `deconv` if it computes floats, has channels first and has
//!   explicit pads. It may have an output padding only if all sizes are known.
//! - A forward convolution becomes `conv` if it computes floats, has channels first and has
//!   explicit pads or SAME_UPPER, or SAME_LOWER if all sizes are known.
//!
//! [`with_deconv`](crate::WithDeconv) loads `deconv` as this crate's operator, and only
//! [`with_conv`](crate::WithConv) does so for `conv`. The dialect, which is only a label, is then
//! NNEF.
//!
//! All other convolutions need the registry `tract_deconv` to load. Its primitives are [`PRIMITIVE`] and,
//! for quantised convolutions, [`QUANTISED_PRIMITIVE`]. [`registry`] documents the parameters. Models must be dumped before they are
//! optimised. The planner's options are not written, because a file outlives the machine that it
//! was made on. [`with_deconv_options`](crate::WithDeconvOptions) gives them where a file is loaded.

mod quantised;
mod standard;

use crate::dimension;
use crate::op::{Dialect, GroupedDeconv};
use crate::options;
use crate::options::{Options, Settings, WithDeconvOptions};
use crate::settings;
use crate::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, OutputShape, Padding, Side, as_size};
use crate::{WithConv, WithDeconv};
use tract_core::ops::scan::Scan;
use tract_nnef::ast::Literal;
use tract_nnef::deser::CoerceFrom;
use tract_nnef::internal::*;
use tract_nnef::ser::{array, ints};

/// The name of the primitive.
pub const PRIMITIVE: &str = "tract_deconv_grouped_deconv";

/// The name of the primitive of quantised convolutions.
pub const QUANTISED_PRIMITIVE: &str = "tract_deconv_quantised_deconv";

/// The name of the registry.
const REGISTRY: &str = "tract_deconv";

/// The longest dimension that is read, in characters, and the deepest nesting of parentheses and
/// signs in it.
const MOST_CHARACTERS: usize = 4096;
const MOST_LEVELS: usize = 64;

const DIRECTIONS: [(&str, Direction); 2] = [("transposed", Direction::Transposed), ("forward", Direction::Forward)];
const DATA_FORMATS: [(&str, DataFormat); 2] = [("ncx", DataFormat::Ncx), ("nxc", DataFormat::Nxc)];
const FILTER_FORMATS: [(&str, FilterFormat); 5] = [
    ("iox", FilterFormat::Iox),
    ("oix", FilterFormat::Oix),
    ("xio", FilterFormat::Xio),
    ("xoi", FilterFormat::Xoi),
    ("grouped_oix", FilterFormat::GroupedOix),
];
const SIDES: [(&str, Side); 2] = [("begin", Side::Begin), ("end", Side::End)];
const DIALECTS: [(&str, Dialect); 5] = [
    ("onnx", Dialect::Onnx),
    ("openvino", Dialect::OpenVino),
    ("onednn", Dialect::OneDnn),
    ("tract", Dialect::Tract),
    ("nnef", Dialect::Nnef),
];

impl WithDeconv for Nnef {
    fn enable_deconv(&mut self) {
        standard::take_over(self, Direction::Transposed);
        add_registry(self);
    }

    fn with_deconv(mut self) -> Nnef {
        self.enable_deconv();
        self
    }
}

impl WithConv for Nnef {
    fn enable_conv(&mut self) {
        standard::take_over(self, Direction::Forward);
        add_registry(self);
    }

    fn with_conv(mut self) -> Nnef {
        self.enable_conv();
        self
    }
}

impl WithDeconvOptions for Nnef {
    fn set_deconv_options(&mut self, options: &Options) -> TractResult<()> {
        let settings = options.settings()?;
        options.set_process();
        self.registries.retain(|registry| !registry.id.0.starts_with(options::ENTRY));
        self.registries.push(Registry::new(options::written(&settings)));
        Ok(())
    }

    fn with_deconv_options(mut self, options: &Options) -> TractResult<Nnef> {
        self.set_deconv_options(options)?;
        Ok(self)
    }
}

/// Returns the settings that the framework carries.
fn carried(builder: &ModelBuilder) -> TractResult<Settings> {
    options::read(builder.framework.registries.iter().map(|registry| &registry.id.0))
}

/// Creates the op of a node that is loaded, with the options of the framework.
fn op(builder: &ModelBuilder, spec: DeconvSpec, dialect: Dialect, has_bias: bool) -> TractResult<GroupedDeconv> {
    let carried = carried(builder)?;
    let options = settings::complete_for(&carried.planning, &carried.exact_nodes, &builder.generate_node_name())?;
    let mut op = GroupedDeconv::new(spec, dialect, has_bias, options)?;
    op.fusion = carried.fusion;
    Ok(op)
}

fn add_registry(nnef: &mut Nnef) {
    if nnef.registries.iter().any(|registry| registry.id.0 == REGISTRY) {
        return;
    }
    for registry in &mut nnef.registries {
        name_in_bodies(registry);
    }
    nnef.registries.push(registry());
}

/// Makes the body of a loop name the registry if an op in it needs the registry.
///
/// tract itself forgets the registries that bodies need.
fn name_in_bodies(registry: &mut Registry) {
    let Some(stock) = registry.from_tract.remove(&std::any::TypeId::of::<Scan>()) else { return };
    let dump = move |ast: &mut IntoAst, node: &TypedNode| {
        let id = Identifier(REGISTRY.into());
        let named = ast.registries.contains(&id);
        if !named {
            ast.registries.push(id.clone());
        }
        let written = stock(ast, node);
        if !named && !ast.fragments.values().any(takes_registry) {
            ast.registries.retain(|registry| *registry != id);
        }
        written
    };
    registry.from_tract.insert(std::any::TypeId::of::<Scan>(), Box::new(dump));
}

fn takes_registry(fragment: &FragmentDef) -> bool {
    let mut assignments = fragment.body.iter().flatten();
    assignments.any(|assignment| {
        matches!(&assignment.right, RValue::Invocation(invocation)
            if [PRIMITIVE, QUANTISED_PRIMITIVE].contains(&&*invocation.id.0))
    })
}

/// # Errors
/// Fails for an op in a loop inside a loop, because tract leaves the inner body out of the file.
fn check_nesting(ast: &IntoAst, node: &TypedNode) -> TractResult<()> {
    let nested = ast.parent.is_some_and(|parent| parent.parent.is_some());
    ensure!(!nested, "{}: it is in a loop inside a loop, whose body tract does not write", node.name);
    Ok(())
}

/// Returns the registry `tract_deconv`.
///
/// The registry alone can't write an op in the body of a loop. [`WithDeconv`] and [`WithConv`] can.
pub fn registry() -> Registry {
    let mut registry = Registry::new(REGISTRY).with_doc("Grouped transposed and forward convolutions.");
    registry
        .register_primitive(PRIMITIVE, &parameters(), &[("output", TypeName::Scalar.tensor())], load)
        .with_doc("One convolution, transposed or forward. Lists have one value per spatial axis.");
    registry.register_dumper(dump);
    quantised::register(&mut registry);
    registry
}

fn parameters() -> Vec<Parameter> {
    let inputs = vec![
        TypeName::Scalar.tensor().named("input").doc("in the data format"),
        TypeName::Scalar.tensor().named("filter").doc("in the filter format"),
        TypeName::Scalar.tensor().named("bias").default(false).doc("one value per output channel, or false"),
        TypeName::Scalar
            .tensor()
            .named("output_size")
            .default(false)
            .doc("the output's spatial size where it is computed at run time, or false"),
    ];
    inputs.into_iter().chain(parameters_of_spec()).chain(labels()).collect()
}

/// Returns the parameters of a spec.
fn parameters_of_spec() -> Vec<Parameter> {
    let none = || Literal::Array(vec![]);
    vec![
        TypeName::String.named("direction").doc("transposed or forward"),
        TypeName::String.named("data_format").doc("ncx or nxc"),
        TypeName::String.named("filter_format").doc("iox, oix, xio, xoi, or grouped_oix"),
        TypeName::Integer.named("in_channels").doc("over all groups"),
        TypeName::Integer.named("out_channels").doc("over all groups"),
        TypeName::Integer.named("group"),
        TypeName::Integer.array().named("kernel"),
        TypeName::Integer.array().named("strides"),
        TypeName::Integer.array().named("dilations"),
        TypeName::Integer.array().named("output_padding"),
        TypeName::String.named("padding").doc("explicit, same_forward or output_shape"),
        TypeName::Integer.array().named("pads_begin").default(none()).doc("of explicit padding"),
        TypeName::Integer.array().named("pads_end").default(none()).doc("of explicit padding"),
        TypeName::String
            .named("extra")
            .default("")
            .doc("the odd element's side, begin or end, where the padding is a total"),
        TypeName::String
            .array()
            .named("output_shape")
            .default(none())
            .doc("dimensions, over symbols too; beside output_size they are what facts show"),
    ]
}

/// Returns the parameters that do not change results.
fn labels() -> Vec<Parameter> {
    vec![
        TypeName::String.named("dialect").default("tract").doc("onnx, openvino, onednn, tract or nnef; only a label"),
        TypeName::Logical.named("fusion").default(true).doc("whether neighbouring operators may be folded in"),
    ]
}

fn dump(ast: &mut IntoAst, node: &TypedNode, op: &GroupedDeconv) -> TractResult<Option<Arc<RValue>>> {
    let mut written =
        GroupedDeconv::new(op.spec.clone(), op.dialect, op.has_bias, op.options.clone()).context("dumping")?;
    written.fusion = op.fusion;
    ensure!(written == *op, "{}: the op holds more than {PRIMITIVE} can say", node.name);
    let optional = [("bias", op.has_bias), ("output_size", op.spec.has_output_shape_input())];
    let (data_and_filter, mut named) = inputs_of(ast, node, &optional)?;
    named.extend(arguments_of_spec(&op.spec)?);
    named.extend([("dialect", word(&DIALECTS, &op.dialect)?), ("fusion", logical(op.fusion))]);
    Ok(Some(invocation(PRIMITIVE, &data_and_filter, &named)))
}

/// Positional values of an invocation, and named ones.
type InputValues = (Vec<Arc<RValue>>, Vec<(&'static str, RValue)>);

/// Returns data and filter of a node, and the optional inputs that it has.
///
/// # Errors
/// The node is in a body that can't be written.
fn inputs_of(ast: &IntoAst, node: &TypedNode, optional: &[(&'static str, bool)]) -> TractResult<InputValues> {
    check_nesting(ast, node)?;
    if let Some(parent) = ast.parent {
        let named = parent.registries.iter().any(|registry| registry.0 == REGISTRY);
        ensure!(named, "{}: it is in the body of a loop, which only with_deconv or with_conv can write", node.name);
    }
    let inputs = node
        .inputs
        .iter()
        .map(|input| ast.mapping.get(input).cloned().with_context(|| format!("{}: an input is not dumped", node.name)))
        .collect::<TractResult<Vec<_>>>()?;
    let mut inputs = inputs.into_iter();
    let data_and_filter: Vec<_> = inputs.by_ref().take(2).collect();
    let mut named = vec![];
    for (name, _) in optional.iter().filter(|(_, present)| *present) {
        let value = inputs.next().with_context(|| format!("{}: the input {name} is missing", node.name))?;
        named.push((*name, value.as_ref().clone()));
    }
    Ok((data_and_filter, named))
}

fn arguments_of_spec(spec: &DeconvSpec) -> TractResult<Vec<(&'static str, RValue)>> {
    let DeconvSpec {
        direction,
        data_format,
        filter_format,
        in_channels,
        out_channels,
        group,
        kernel,
        strides,
        dilations,
        padding,
        output_padding,
    } = spec;
    let mut named = vec![
        ("direction", word(&DIRECTIONS, direction)?),
        ("data_format", word(&DATA_FORMATS, data_format)?),
        ("filter_format", word(&FILTER_FORMATS, filter_format)?),
        ("in_channels", numeric(in_channels)),
        ("out_channels", numeric(out_channels)),
        ("group", numeric(group)),
        ("kernel", ints(kernel)),
        ("strides", ints(strides)),
        ("dilations", ints(dilations)),
        ("output_padding", ints(output_padding)),
    ];
    match padding {
        Padding::Explicit { begin, end } => named.extend([
            ("padding", string("explicit")),
            ("pads_begin", array(begin.iter().map(numeric).collect::<Vec<_>>())),
            ("pads_end", array(end.iter().map(numeric).collect::<Vec<_>>())),
        ]),
        Padding::SameForward { extra } => {
            named.extend([("padding", string("same_forward")), ("extra", word(&SIDES, extra)?)]);
        }
        Padding::OutputShape { shape, extra } => {
            let dims = shape.dims().iter().map(dim_argument).collect::<TractResult<Vec<_>>>()?;
            named.extend([
                ("padding", string("output_shape")),
                ("extra", word(&SIDES, extra)?),
                ("output_shape", array(dims)),
            ]);
        }
    }
    Ok(named)
}

fn load(builder: &mut ModelBuilder, invocation: &ResolvedInvocation) -> TractResult<Value> {
    let mut arguments = Arguments { builder, invocation };
    let mut inputs: TVec<OutletId> = tvec!(arguments.get("input")?, arguments.get("filter")?);
    let bias: Option<OutletId> = invocation.optional_named_arg_as(arguments.builder, "bias").context("bias")?;
    let output_size: Option<OutletId> =
        invocation.optional_named_arg_as(arguments.builder, "output_size").context("output_size")?;
    let has_bias = bias.is_some();
    let spec = arguments.spec(output_size.is_some())?;
    let dialect = arguments.word("dialect", &DIALECTS)?;
    let mut op = op(arguments.builder, spec, dialect, has_bias)?;
    op.fusion &= arguments.get::<bool>("fusion")?;
    inputs.extend(bias.into_iter().chain(output_size));
    builder.wire(op, &inputs)
}

/// The arguments of an invocation, read by name.
struct Arguments<'a, 'b> {
    builder: &'a mut ModelBuilder<'b>,
    invocation: &'a ResolvedInvocation<'a>,
}

impl Arguments<'_, '_> {
    fn get<T: CoerceFrom<Value>>(&mut self, name: &str) -> TractResult<T> {
        self.invocation.named_arg_as(self.builder, name)
    }

    fn word<T: Copy>(&mut self, name: &str, table: &[(&'static str, T)]) -> TractResult<T> {
        let text: String = self.get(name)?;
        table.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).with_context(|| {
            let known: Vec<&str> = table.iter().map(|(word, _)| *word).collect();
            format!("{name}: {name}={text}, the known ones are {}", known.join(", "))
        })
    }

    /// Reads a spec. `has_output_size` tells whether its output size is an input.
    fn spec(&mut self, has_output_size: bool) -> TractResult<DeconvSpec> {
        let padding: String = self.get("padding")?;
        ensure!(
            !has_output_size || padding == "output_shape",
            "output_size: padding={padding}, only output_shape takes this input"
        );
        Ok(DeconvSpec {
            direction: self.word("direction", &DIRECTIONS)?,
            data_format: self.word("data_format", &DATA_FORMATS)?,
            filter_format: self.word("filter_format", &FILTER_FORMATS)?,
            in_channels: self.size("in_channels")?,
            out_channels: self.size("out_channels")?,
            group: self.size("group")?,
            kernel: self.sizes("kernel")?,
            strides: self.sizes("strides")?,
            dilations: self.sizes("dilations")?,
            output_padding: self.sizes("output_padding")?,
            padding: match &*padding {
                "explicit" => Padding::Explicit { begin: self.get("pads_begin")?, end: self.get("pads_end")? },
                "same_forward" => Padding::SameForward { extra: self.word("extra", &SIDES)? },
                "output_shape" => {
                    let dims = self.dims("output_shape")?;
                    let shape = if has_output_size { OutputShape::Input(dims) } else { OutputShape::Dims(dims) };
                    Padding::OutputShape { shape, extra: self.word("extra", &SIDES)? }
                }
                _ => bail!("padding: padding={padding}, the known ones are explicit, same_forward, output_shape"),
            },
        })
    }

    fn size(&mut self, name: &str) -> TractResult<usize> {
        let value = self.get(name)?;
        as_size(name, value)
    }

    fn sizes(&mut self, name: &str) -> TractResult<TVec<usize>> {
        let values: TVec<i64> = self.get(name)?;
        values.into_iter().map(|value| as_size(name, value)).collect()
    }

    fn dims(&mut self, name: &str) -> TractResult<TVec<TDim>> {
        let texts: TVec<String> = self.get(name)?;
        texts
            .iter()
            .map(|text| dim_from_text(&self.builder.model.symbols, text).with_context(|| name.to_string()))
            .collect()
    }
}

fn word<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> TractResult<RValue> {
    table.iter().find(|(_, v)| v == value).map(|(word, _)| string(word)).context("a value without a name in NNEF")
}

/// # Errors
/// Fails for a dimension that could not be read again.
fn dim_argument(dim: &TDim) -> TractResult<RValue> {
    let text = dim_text(dim)?;
    dim_of_any_symbols(&text).context("output_shape")?;
    Ok(string(text))
}

/// Returns a dimension as text that [`dim_from_text`] reads, if it is not too large.
fn dim_text(dim: &TDim) -> TractResult<String> {
    // A string, because NNEF's own expressions have no minimum, and a tensor would shadow a symbol
    // of the same name.
    let nested = |dim: &TDim| match dim {
        TDim::Sym(_) => dim_text(dim),
        TDim::Val(value) if *value >= 0 => dim_text(dim),
        _ => Ok(format!("({})", dim_text(dim)?)),
    };
    let all = |terms: &[TDim]| terms.iter().map(nested).collect::<TractResult<Vec<String>>>();
    Ok(match dim {
        TDim::Val(value) => value.to_string(),
        TDim::Sym(symbol) => {
            let name = symbol.to_string();
            let scope = SymbolScope::default();
            let read = scope.parse_tdim(&name).ok();
            ensure!(
                read.is_some_and(|dim| dim == scope.sym(&name).to_dim()),
                "output_shape: symbol={name:?}, letters, digits and underscores are needed"
            );
            name
        }
        TDim::Add(terms) => all(terms)?.join("+"),
        TDim::Mul(terms) => all(terms)?.join("*"),
        TDim::MulInt(factor, dim) => format!("{}*{}", nested(&factor.to_dim())?, nested(dim)?),
        TDim::Div(dim, divisor) => format!("{}/{divisor}", nested(dim)?),
        TDim::Min(terms) => format!("min({})", all(terms)?.join(",")),
        TDim::Max(terms) => format!("max({})", all(terms)?.join(",")),
        TDim::Broadcast(terms) => format!("broadcast({})", all(terms)?.join(",")),
        TDim::Ge(..) | TDim::Eq(..) => bail!("output_shape: dim={dim}, a comparison is no dimension"),
    })
}

/// # Errors
/// Fails for a text that is not a dimension, that divides by zero, that is too large, or that has a
/// symbol which the model does not declare.
fn dim_from_text(symbols: &SymbolScope, text: &str) -> TractResult<TDim> {
    // Parse it in a separate scope first, because parsing declares the symbols that it meets.
    let (_scope, dim) = dim_of_any_symbols(text)?;
    for symbol in dim.symbols() {
        let name = symbol.to_string();
        ensure!(symbols.get(&name).is_some(), "dim={text:?}, the model has no symbol {name}");
    }
    symbols.parse_tdim(text)
}

/// Parses a dimension over new symbols, in a scope that must be kept for the symbols to have names.
fn dim_of_any_symbols(text: &str) -> TractResult<(SymbolScope, TDim)> {
    let mut levels = 0usize;
    let mut deepest = 0;
    for character in text.chars() {
        match character {
            '(' | '-' => levels += 1,
            ')' => levels = levels.saturating_sub(1),
            _ => (),
        }
        deepest = deepest.max(levels);
    }
    ensure!(
        text.len() <= MOST_CHARACTERS && deepest <= MOST_LEVELS,
        "dim={:?}, at most {MOST_CHARACTERS} characters and {MOST_LEVELS} levels are read",
        text.chars().take(32).collect::<String>()
    );
    dimension::Extent::of_text(text)
        .with_context(|| format!("dim={text:?}, an expression is needed"))?
        .check()
        .with_context(|| format!("dim={:?}", text.chars().take(32).collect::<String>()))?;
    let divides_by_zero = text.split('/').skip(1).any(|after| {
        let after = after.trim_start();
        let digits = after.find(|c: char| !c.is_ascii_digit()).map_or(after, |end| &after[..end]);
        digits.parse::<u64>() == Ok(0)
    });
    ensure!(!divides_by_zero, "dim={text:?}, it divides by zero");
    let scope = SymbolScope::default();
    let dim = scope.parse_tdim(text).map_err(|_| format_err!("dim={text:?}, an expression is needed"))?;
    Ok((scope, dim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_survive_as_text() -> TractResult<()> {
        let scope = SymbolScope::default();
        let (h, w) = (scope.sym("H").to_dim(), scope.sym("w_1").to_dim());
        let dims = [
            7.to_dim(),
            h.clone(),
            h.clone() * 2 + 1,
            h.clone() - 3,
            h.clone() * &w,
            (h.clone() + 1) / 2,
            TDim::MulInt(-3, Box::new(TDim::Add(vec![h.clone(), w.clone()]))),
            TDim::Div(Box::new(TDim::MulInt(2, Box::new(h.clone()))), 3),
            TDim::MulInt(2, Box::new(TDim::Div(Box::new(h.clone()), 3))),
            TDim::Min(vec![h.clone() * 2, 9.to_dim()]),
            TDim::Max(vec![h.clone(), w.clone() - 1, 1.to_dim()]),
            TDim::Broadcast(vec![h.clone(), w.clone()]),
        ];
        for dim in dims {
            let text = dim_text(&dim)?;
            let read = dim_from_text(&scope, &text).with_context(|| text.clone())?;
            for (h, w) in [(1, 1), (1, 8), (7, 1), (8, 8)] {
                let mut values = SymbolValues::default();
                values.set(&scope.sym("H"), h);
                values.set(&scope.sym("w_1"), w);
                assert_eq!(dim.eval_to_i64(&values)?, read.eval_to_i64(&values)?, "{text}");
            }
        }
        Ok(())
    }

    #[test]
    fn dimensions_that_can_not_be_written() {
        let scope = SymbolScope::default();
        let (h, odd) = (scope.sym("H").to_dim(), scope.sym("odd name").to_dim());
        assert!(dim_text(&odd).is_err());
        assert!(dim_text(&TDim::Ge(Box::new(h), Box::new(1.to_dim()))).is_err());
    }

    #[test]
    fn texts_that_are_no_dimensions() {
        let scope = SymbolScope::default();
        let _declared = scope.sym("H");
        let deep = format!("{}H{}", "(".repeat(100_000), ")".repeat(100_000));
        let signs = format!("{}H", "-".repeat(1000));
        for text in ["", "H+", "K", "H/0", "H / 00", "2*(H/2)/0", "H;", &deep, &signs] {
            assert!(dim_from_text(&scope, text).is_err(), "{}", &text[..text.len().min(20)]);
        }
        assert_eq!(scope.all_symbols().len(), 1);
    }
}
