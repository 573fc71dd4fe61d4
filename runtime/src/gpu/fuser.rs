//! Which values of a graph a device makes in steps of its own.

use super::steps::Step;
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
            DispatchDevice::Cube(cube) if multiplies_codes(cube) => {
                let scope = DeviceScope::new(graph, order, part, pinned);
                Some(On { graph, scope, device, cube: cube.clone() })
            }
            _ => None,
        })
    }

    /// How the device makes `want`, if not by its node.
    ///
    /// # Errors
    /// What reading constants raises.
    pub fn fuse(&self, want: Want) -> Result<Option<Fusion>> {
        let Some(On { graph, scope, device, cube }) = &self.0 else { return Ok(None) };
        if let Some((operands, op)) = scope.lowered(want)? {
            return Ok(Some(Fusion { operands, step: Box::new(Step::new(device, cube, op)) }));
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

/// Whether a device has tensor cores for codes.
fn multiplies_codes(cube: &CubeDevice) -> bool {
    use cubecl::ir::{ElemType, IntKind, UIntKind};
    let (u8, i8) = (ElemType::UInt(UIntKind::U8), ElemType::Int(IntKind::I8));
    cube.client().properties().features.matmul.mma.iter().any(|m| (m.a_type, m.b_type, m.k) == (i8, u8, 32))
}
