//! Which values of a graph a device makes in steps of its own.

use super::{dense::By, steps::Step};
use crate::{
    burn::fused::Fusion,
    cpu::{Form, Want, device::DeviceScope},
    device::Device,
};
use ::burn::backend::DispatchDevice;
use burn_cubecl::CubeDevice;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    tensor::DType,
};
use std::collections::HashSet;

/// Says which values a device makes in steps of its own.
pub struct Fuser<'g>(Option<On<'g>>);

struct On<'g> {
    graph: &'g Graph,
    scope: DeviceScope<'g>,
    device: &'g Device,
    cube: CubeDevice,
    by: By,
}

impl<'g> Fuser<'g> {
    /// For the nodes of `order` for which `part` is true. Values in `pinned` are needed as they are.
    pub fn new(
        graph: &'g Graph,
        order: &[NodeId],
        part: &'g dyn Fn(NodeId) -> bool,
        pinned: &'g HashSet<Port>,
        device: &'g Device,
    ) -> Self {
        Self(match device.burn() {
            DispatchDevice::Cube(cube) => By::of(cube).map(|by| {
                let scope = DeviceScope::new(graph, order, part, pinned);
                On { graph, scope, device, cube: cube.clone(), by }
            }),
            _ => None,
        })
    }

    /// How the device makes `want`, if not by its node.
    ///
    /// # Errors
    /// What reading constants raises.
    pub fn fuse(&self, want: Want) -> Result<Option<Fusion>> {
        let Some(On { graph, scope, device, cube, by }) = &self.0 else { return Ok(None) };
        if let Some((operands, op)) = scope.lowered(want)? {
            return Ok(Some(Fusion {
                operands,
                step: Box::new(Step::new(device, cube, *by, op, graph.is_output(want.port))),
            }));
        }
        let signed = match graph.fact(want.port).dtype {
            Some(DType::U8) => false,
            Some(DType::I8) => true,
            _ => return Ok(None),
        };
        Ok(match want.form {
            Form::Codes => {
                let step = Box::new(Step::encode(device, signed));
                Some(Fusion { operands: vec![Want::float(want.port)], step })
            }
            Form::Float if scope.makes(Want::codes(want.port)) => {
                let step = Box::new(Step::decode(device, signed));
                Some(Fusion { operands: vec![Want::codes(want.port)], step })
            }
            Form::Float => None,
        })
    }
}
