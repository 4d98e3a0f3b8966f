//! Strict reading of a node's attributes.

use super::expand::DeclaredPads;
use crate::spec::{MAX_EXTENT, as_size};
use tract_core::internal::*;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, NodeProto};

/// The encoding of lists of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lists {
    /// As in ONNX.
    Ints,
    /// As in ONNX, or as a string of comma-separated integers: `"2,2"`.
    IntsOrText,
}

/// The attributes of a node.
///
/// Every getter returns `None` for a missing attribute. It fails with an error that names the
/// attribute if the type is wrong.
pub(super) struct Attributes<'a> {
    node: &'a NodeProto,
    lists: Lists,
    known: &'static [&'static str],
}

impl<'a> Attributes<'a> {
    /// Creates the reader. `known` lists every name that will be read; other attributes are
    /// ignored.
    ///
    /// # Errors
    /// Fails if an attribute occurs twice.
    pub fn new(node: &'a NodeProto, lists: Lists, known: &'static [&'static str]) -> TractResult<Attributes<'a>> {
        for (ix, attribute) in node.attribute.iter().enumerate() {
            let name = &attribute.name;
            ensure!(
                node.attribute[..ix].iter().all(|other| other.name != *name),
                "attribute: name={name}, it is given more than once"
            );
        }
        Ok(Attributes { node, lists, known })
    }

    fn find(&self, name: &str) -> Option<&'a AttributeProto> {
        debug_assert!(self.known.contains(&name), "{name} is missing in the list of attributes");
        self.node.attribute.iter().find(|a| a.name == name)
    }

    fn get(&self, name: &str, types: &[AttributeType]) -> TractResult<Option<&'a AttributeProto>> {
        let Some(attribute) = self.find(name) else { return Ok(None) };
        let expected = || types.iter().map(|t| type_name(*t)).collect::<Vec<_>>().join(" or ");
        match AttributeType::try_from(attribute.r#type) {
            Ok(found) if types.contains(&found) => Ok(Some(attribute)),
            Ok(found) => bail!("{name}: type={}, {} is needed", type_name(found), expected()),
            Err(_) => bail!("{name}: type={}, {} is needed", attribute.r#type, expected()),
        }
    }

    pub fn int(&self, name: &str) -> TractResult<Option<i64>> {
        Ok(self.get(name, &[AttributeType::Int])?.map(|a| a.i))
    }

    pub fn string(&self, name: &str) -> TractResult<Option<&'a str>> {
        self.get(name, &[AttributeType::String])?
            .map(|a| std::str::from_utf8(&a.s).ok().with_context(|| format!("{name}: the text is not utf-8")))
            .transpose()
    }

    /// Returns a list of integers.
    ///
    /// An empty list counts as absent, as in the runtimes that define these dialects, and is
    /// logged.
    pub fn ints(&self, name: &str) -> TractResult<Option<TVec<i64>>> {
        let types = match self.lists {
            Lists::Ints => &[AttributeType::Ints][..],
            Lists::IntsOrText => &[AttributeType::Ints, AttributeType::String],
        };
        let Some(attribute) = self.get(name, types)? else { return Ok(None) };
        let text = String::from_utf8_lossy(&attribute.s);
        let values: TVec<i64> = if attribute.r#type == AttributeType::Ints as i32 {
            attribute.ints.as_slice().into()
        } else if text.trim().is_empty() {
            tvec!()
        } else {
            text.split(',')
                .map(|value| value.trim().parse::<i64>())
                .collect::<Result<_, _>>()
                .ok()
                .with_context(|| format!("{name}: {name}={text:?}, integers between commas are needed"))?
        };
        if values.is_empty() {
            self.note(format_args!("{name}=[], taken as absent"));
            return Ok(None);
        }
        Ok(Some(values))
    }

    /// Logs a warning about a redundant attribute of the node.
    pub fn note(&self, what: impl std::fmt::Display) {
        log::warn!("{} ({}): {what}", self.node.name, self.node.op_type);
    }

    /// Logs a warning about pads that `rule` ignores.
    pub fn note_unread_pads(&self, pads: &[DeclaredPads; 2], rule: &str) {
        for (name, values) in DeclaredPads::by_attribute(pads) {
            let zero = values.iter().all(|pad| *pad == 0);
            let outcome = if zero { "taken as absent" } else { "unread" };
            self.note(format_args!("{name}={values:?}, {outcome} beside {rule}"));
        }
    }

    /// Returns a list of integers, each at least `least`.
    pub fn sizes(&self, name: &str, least: i64) -> TractResult<Option<TVec<usize>>> {
        let Some(values) = self.ints(name)? else { return Ok(None) };
        ensure!(
            values.iter().all(|v| *v >= least.max(0)),
            "{name}: {name}={values:?}, every value must be at least {least}"
        );
        let sizes = values.iter().map(|v| usize::try_from(*v).ok()).collect::<Option<_>>();
        let sizes =
            sizes.with_context(|| format!("{name}: {name}={values:?}, every value must be at most {MAX_EXTENT}"))?;
        Ok(Some(sizes))
    }

    /// Returns a list of integers, each at least `least` if there is such a bound.
    pub fn pads(&self, name: &str, least: Option<i64>) -> TractResult<Option<TVec<i64>>> {
        let pads = self.ints(name)?;
        if let (Some(pads), Some(least)) = (&pads, least) {
            ensure!(pads.iter().all(|p| *p >= least), "{name}: {name}={pads:?}, every value must be at least {least}");
        }
        Ok(pads)
    }

    /// Returns `pads_begin` and `pads_end`, each value at least `least`.
    pub fn declared_pads(&self, least: Option<i64>) -> TractResult<[DeclaredPads; 2]> {
        let side = |name| self.pads(name, least).map(|values| DeclaredPads { name, values });
        Ok([side("pads_begin")?, side("pads_end")?])
    }

    /// Returns an integer that is at least one. The default is one.
    pub fn group(&self, name: &str) -> TractResult<usize> {
        let Some(group) = self.int(name)? else { return Ok(1) };
        ensure!(group >= 1, "{name}: {name}={group}, it must be at least 1");
        as_size(name, group)
    }
}

fn type_name(ty: AttributeType) -> &'static str {
    match ty {
        AttributeType::Undefined => "undefined",
        AttributeType::Int => "int",
        AttributeType::Float => "float",
        AttributeType::String => "string",
        AttributeType::Tensor => "tensor",
        AttributeType::Graph => "graph",
        AttributeType::Ints => "list of ints",
        AttributeType::Floats => "list of floats",
        AttributeType::Strings => "list of strings",
        AttributeType::Tensors => "list of tensors",
        AttributeType::Graphs => "list of graphs",
        _ => "another type",
    }
}
