//! Tensors from the `.pb` files that the tests' generators write, which hold raw data.

use compress_compiler::tensor::{DType, Tensor};
use std::{fs, path::Path};

/// The tensors `kind_0.pb`, `kind_1.pb` and so on in `folder`.
pub fn tensors(folder: &Path, kind: &str) -> Vec<Tensor> {
    let files = (0..).map(|i| folder.join(format!("{kind}_{i}.pb"))).take_while(|p| p.exists());
    files.map(|p| tensor(&fs::read(&p).unwrap())).collect()
}

/// A TensorProto as the generators write it: dims (field 1), data_type (2), raw_data (9).
fn tensor(mut bytes: &[u8]) -> Tensor {
    let (mut dims, mut code, mut raw) = (vec![], 0, vec![]);
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        match tag & 7 {
            0 => match (tag >> 3, varint(&mut bytes)) {
                (1, n) => dims.push(n as usize),
                (2, n) => code = n as i32,
                _ => {}
            },
            2 => {
                let len = varint(&mut bytes) as usize;
                let (mut field, rest) = bytes.split_at(len);
                bytes = rest;
                match tag >> 3 {
                    1 => {
                        while !field.is_empty() {
                            dims.push(varint(&mut field) as usize);
                        }
                    }
                    9 => raw = field.to_vec(),
                    _ => {}
                }
            }
            other => panic!("wire type {other} in a tensor"),
        }
    }
    let dtype = DType::from_onnx(code).unwrap_or_else(|| panic!("the element type {code} is not known"));
    Tensor::new(dtype, dims, raw).unwrap()
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}
