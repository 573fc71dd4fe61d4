use super::*;
use compress_compiler::{text, verify::verify};
use std::fmt::Write;

/// Pools, of which four are worth a part, Softplus, which Burn runs, and sums of two values.
fn random(nodes: usize, mut state: u32) -> Graph {
    let mut random = |n: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % n
    };
    let mut source = String::from("graph \"random\" {\n  input %v0: f32[1,2,4,4]\n");
    for i in 1..=nodes {
        let (a, b) = (i - 1 - random(i.min(12)), i - 1 - random(i.min(12)));
        let op = match random(3) {
            0 => format!("AveragePool(%v{a}) {{kernel_shape=[3, 3], pads=[1, 1, 1, 1]}}"),
            1 => format!("Softplus(%v{a})"),
            _ => format!("Add(%v{a}, %v{b})"),
        };
        writeln!(source, "  %v{i} = {op} \"n{i}\"").unwrap();
    }
    (1..=nodes).for_each(|i| writeln!(source, "  output %v{i}").unwrap());
    text::parse(&(source + "}")).unwrap()
}

#[test]
fn every_part_of_the_cpu_executor_is_worth_it() {
    let mut parts = 0;
    for seed in 0..200 {
        let graph = random(120, seed);
        let graph = verify(&graph).unwrap();
        let levels = Levels::of(&graph, cpu::known(&graph, graph.order()));
        let own = levels.gains(&graph).into_iter().enumerate().filter(|(level, _)| Levels::is_cpu(*level));
        let own: Vec<u64> = own.map(|(_, gain)| gain).collect();
        parts += own.len();
        // None is empty but the first, where Burn begins.
        let low = |(i, gain): &(usize, &u64)| **gain < WORTH_A_PART && (*i > 0 || **gain > 0);
        assert_eq!(own.iter().enumerate().find(low), None, "seed {seed}");
    }
    assert!(parts > 400, "{parts} parts");
}
