//! What a file says besides what it computes: documentation, metadata, annotations of tensors.

use crate::node::Remarks;
use onnx_protobuf::{GraphProto, ModelProto, NodeProto, StringStringEntryProto};
use std::collections::HashSet;

/// What `node` says of itself, if anything.
pub fn of_node(node: &NodeProto) -> Option<Remarks> {
    let silent = node.doc_string.is_empty() && node.metadata_props.is_empty();
    (!silent).then(|| Remarks {
        doc: node.doc_string.clone(),
        metadata: node.metadata_props.iter().map(|p| (p.key.clone(), p.value.clone())).collect(),
    })
}

/// Makes `node` say it again.
pub fn write_node(node: &mut NodeProto, remarks: &Remarks) {
    let entry = |(key, value): &(String, String)| StringStringEntryProto {
        key: key.clone(),
        value: value.clone(),
        ..Default::default()
    };
    node.doc_string = remarks.doc.clone();
    node.metadata_props = remarks.metadata.iter().map(entry).collect();
}

/// `graph` without what it computes: what it says of itself and of its tensors' quantisation, with the initializers that
/// say how, as nothing else may read them.
pub fn of_graph(graph: &GraphProto) -> GraphProto {
    let parameters = graph.quantization_annotation.iter().flat_map(|a| &a.quant_parameter_tensor_names);
    let parameters: HashSet<&str> = parameters.map(|p| &p.value[..]).collect();
    GraphProto {
        doc_string: graph.doc_string.clone(),
        metadata_props: graph.metadata_props.clone(),
        special_fields: graph.special_fields.clone(),
        quantization_annotation: graph.quantization_annotation.clone(),
        initializer: graph.initializer.iter().filter(|t| parameters.contains(&t.name[..])).cloned().collect(),
        ..Default::default()
    }
}

/// Makes `graph` say what [`of_graph`] found, as far as it has what that is about.
pub fn write_graph(graph: &mut GraphProto, said: GraphProto) {
    graph.doc_string = said.doc_string;
    graph.metadata_props = said.metadata_props;
    graph.special_fields = said.special_fields;
    if said.quantization_annotation.is_empty() {
        return;
    }
    let made = graph.node.iter().flat_map(|n| &n.output).chain(graph.initializer.iter().map(|t| &t.name));
    let mut there: HashSet<String> = made.chain(graph.input.iter().map(|i| &i.name)).cloned().collect();
    let mut annotations = said.quantization_annotation;
    annotations.retain(|a| there.contains(&a.tensor_name));
    let parameters = annotations.iter().flat_map(|a| &a.quant_parameter_tensor_names);
    let parameters: HashSet<&str> = parameters.map(|p| &p.value[..]).collect();
    for t in said.initializer {
        if parameters.contains(&t.name[..]) && there.insert(t.name.clone()) {
            graph.initializer.push(t);
        }
    }
    annotations.retain(|a| a.quant_parameter_tensor_names.iter().all(|p| there.contains(&p.value)));
    graph.quantization_annotation = annotations;
}

/// Makes all graphs of `model` and their nodes say no more than what they compute.
pub fn strip(model: &mut ModelProto) {
    model.doc_string.clear();
    model.graph.as_mut().into_iter().for_each(strip_graph);
}

fn strip_graph(graph: &mut GraphProto) {
    graph.doc_string.clear();
    graph.metadata_props.clear();
    for node in &mut graph.node {
        node.doc_string.clear();
        node.metadata_props.clear();
        let bodies = node.attribute.iter_mut().flat_map(|a| a.g.as_mut().into_iter().chain(&mut a.graphs));
        bodies.for_each(strip_graph);
    }
}
