//! Compares the README's table of operators and attributes with what the dialects read.

use super::{onednn, onnx, openvino};
use crate::op::GroupedDeconv;
use crate::spec::DeconvSpec;
use crate::testing::{attribute, counting, info, int, ints, load, model, node, text};
use std::collections::BTreeSet;
use tract_core::internal::*;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{AttributeProto, NodeProto};

const README: &str = include_str!("../../README.md");

/// One column of the table.
struct Operators<'a> {
    dialect: &'a str,
    names: Vec<&'a str>,
    /// The attribute and the field of each row. Fields may be empty.
    fields: Vec<(&'a str, &'a str)>,
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

fn columns() -> Vec<Operators<'static>> {
    let (_, table) = README.split_once("<!-- attributes:").expect("the table");
    let (table, _) = table.split_once("<!-- end of attributes").expect("the table's end");
    let mut lines = table.lines().skip(1).filter(|line| !line.is_empty());
    let header = cells(lines.next().expect("a header"));
    let rows: Vec<Vec<&str>> = lines.skip(1).map(cells).collect();
    (header.iter().enumerate().skip(1))
        .map(|(column, title)| {
            let (dialect, names) = title.split_once(' ').expect("a dialect and its operators");
            let fields = rows.iter().map(|row| (row[0].trim_matches('`'), row[column])).collect();
            Operators { dialect, names: names.split(", ").collect(), fields }
        })
        .collect()
}

impl Operators<'_> {
    fn read_attributes(&self) -> &'static [&'static str] {
        match self.dialect {
            "ONNX" if self.names == ["Conv"] => &onnx::ATTRIBUTES_OF_CONV,
            "ONNX" => &onnx::ATTRIBUTES,
            "OpenVINO" => &openvino::ATTRIBUTES,
            "oneDNN" => &onednn::ATTRIBUTES,
            other => panic!("dialect={other}"),
        }
    }

    fn node(&self, operator: &str, attributes: &[AttributeProto]) -> NodeProto {
        let domain = match self.dialect {
            "ONNX" => "",
            "OpenVINO" => "org.openvinotoolkit",
            _ => "onednn",
        };
        node(domain, operator, &["x", "w"], attributes)
    }

    fn spec(&self, operator: &str, attributes: &[AttributeProto]) -> TractResult<DeconvSpec> {
        let filter: &[i64] = match (self.dialect, operator) {
            // All axes are equal, so the shape is right in every layout.
            ("oneDNN", _) => &[4, 4, 4, 4],
            ("OpenVINO", "GroupConvolution" | "GroupConvolutionBackpropData") => &[1, 4, 4, 3, 3],
            _ => &[4, 4, 3, 3],
        };
        let model = load(&model(
            vec![info("x", DataType::Float, &["4", "4", "4", "4"])],
            vec![counting("w", filter)],
            vec![self.node(operator, attributes)],
        ))?;
        let op = model.nodes().iter().find_map(|node| node.op_as::<GroupedDeconv>());
        Ok(op.context("the op is there")?.spec.clone())
    }
}

/// The meaning of a field.
#[derive(Debug)]
enum Field<'a> {
    Refused,
    Zero,
    Filter,
    Integers { list: bool, least: Option<i64>, absent: Option<i64> },
    Words { all: Vec<&'a str>, absent: Option<&'a str> },
}

fn field(text: &str) -> Field<'_> {
    let bold = text.split("**").nth(1);
    let number = |text: &str| text.trim_matches('*').parse::<i64>().expect("a number");
    match text {
        "refused" => Field::Refused,
        "only **0**" => Field::Zero,
        "**the filter's**" => Field::Filter,
        _ if text.starts_with("int") => {
            let least = text.split_once(" from ").map(|(_, least)| number(least));
            Field::Integers { list: text.starts_with("ints"), least, absent: bold.map(number) }
        }
        _ => Field::Words { all: text.split(", ").map(|word| word.trim_matches('*')).collect(), absent: bold },
    }
}

/// An attribute of a type that no operator has.
fn float(name: &str) -> AttributeProto {
    AttributeProto { r#type: AttributeType::Float as i32, f: 1.0, ..attribute(name) }
}

#[test]
fn every_attribute_that_is_read_is_in_the_table() {
    for column in columns() {
        let table: BTreeSet<&str> = column.fields.iter().filter(|f| !f.1.is_empty()).map(|f| f.0).collect();
        let read: BTreeSet<&str> = column.read_attributes().iter().copied().collect();
        assert_eq!(table, read, "{} {:?}", column.dialect, column.names);
    }
}

#[test]
fn every_field_of_the_table_is_true() -> TractResult<()> {
    let columns = columns();
    assert_eq!(columns.iter().map(|column| column.names.len()).sum::<usize>(), 7);
    for column in &columns {
        for operator in &column.names {
            let plain = column.spec(operator, &[])?;
            for (name, text) in &column.fields {
                let what = format!("{} {operator}, {name}: {text:?}", column.dialect);
                if text.is_empty() {
                    let spec = column.spec(operator, &[float(name)]).context(what.clone())?;
                    ensure!(spec == plain, "{what}: it is read");
                    continue;
                }
                let refused = |attribute: AttributeProto| match column.spec(operator, &[attribute]) {
                    Ok(spec) => bail!("{what}: taken as {spec}"),
                    Err(error) if format!("{error:#}").contains(&**name) => Ok(()),
                    Err(error) => bail!("{what}: the error does not name it: {error:#}"),
                };
                refused(float(name))?;
                check(&field(text), name, refused, |attribute| column.spec(operator, &[attribute]), &plain)
                    .context(what.clone())?;
            }
        }
    }
    Ok(())
}

fn check(
    field: &Field,
    name: &str,
    refused: impl Fn(AttributeProto) -> TractResult<()>,
    taken: impl Fn(AttributeProto) -> TractResult<DeconvSpec>,
    plain: &DeconvSpec,
) -> TractResult<()> {
    // `pads` holds both sides.
    let list = |value: i64| ints(name, &vec![value; if name == "pads" { 4 } else { 2 }]);
    match field {
        Field::Refused => refused(list(4)),
        Field::Zero => {
            ensure!(taken(list(0))? == *plain, "zero means something");
            refused(list(1))
        }
        Field::Filter => {
            ensure!(taken(list(3))? == *plain, "the filter's own means something");
            refused(list(2))
        }
        Field::Integers { list: is_list, least, absent } => {
            let written = |value| if *is_list { list(value) } else { int(name, value) };
            if let Some(least) = least {
                taken(written(*least))?;
                refused(written(least - 1))?;
            } else {
                taken(written(-1))?;
            }
            let Some(absent) = absent else { return Ok(()) };
            ensure!(taken(written(*absent))? == *plain, "absence means something else");
            Ok(())
        }
        Field::Words { all, absent } => {
            for word in all {
                taken(text(name, word)).with_context(|| word.to_string())?;
            }
            refused(text(name, "nonsense"))?;
            let Some(absent) = absent else { return Ok(()) };
            ensure!(taken(text(name, absent))? == *plain, "absence means something else");
            Ok(())
        }
    }
}
