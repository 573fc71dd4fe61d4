//! Tensors from the `.pb` files that the tests' generators write.

use compress_compiler::{onnx, tensor::Tensor};
use std::{fs, path::Path};

/// The tensors `kind_0.pb`, `kind_1.pb` and so on in `folder`.
pub fn tensors(folder: &Path, kind: &str) -> Vec<Tensor> {
    let files = (0..).map(|i| folder.join(format!("{kind}_{i}.pb"))).take_while(|p| p.exists());
    files.map(|p| onnx::read_tensor(fs::read(&p).unwrap()).unwrap().1).collect()
}
