//! What models can run on.

use crate::{Devices, shown::bytes};
use compress_compiler::words::counted;
use compress_runtime::device::About;

/// A line for each device, as a program's option names it, for people.
pub fn devices(all: &Devices) -> String {
    let cpu = &all.cpu;
    let free = cpu.free_bytes.map_or(String::new(), |n| format!("; {} of memory free", bytes(n)));
    let mut lines =
        vec![("cpu".into(), format!("{}, kernels {}{free}", counted(cpu.threads, "thread"), cpu.kernels.join(", ")))];
    lines.extend(all.gpus.iter().map(|gpu| (gpu.device.clone(), about(gpu))));
    lines.extend(all.missing.iter().map(|missing| (missing.device.clone(), missing.why.clone())));
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    lines.iter().map(|(name, what)| format!("{name:width$}  {what}\n")).collect()
}

fn about(gpu: &About) -> String {
    let software = if gpu.software { " (software: it computes on the CPU)" } else { "" };
    let memory = gpu.memory_bytes.map_or(String::new(), |n| format!("{} of memory, ", bytes(n as usize)));
    let products = match gpu.matrix_types.is_empty() {
        true => "no tensor cores".into(),
        false => format!("tensor cores for {}", gpu.matrix_types.join(", ")),
    };
    format!(
        "{}{software}; {memory}tensors up to {}, {} a block; {}; {products}",
        gpu.name,
        bytes(gpu.largest_bytes as usize),
        bytes(gpu.shared_bytes),
        gpu.types.join(", "),
    )
}
