use super::*;
use compress_compiler::{tensor::DType, text, verify::verify};
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

/// A product in one branch of an If, by a weight that is inside of it or around it, and a Neg in the other.
fn branches(inside: bool) -> Graph {
    let weight: Vec<String> = (0..512 * 512).map(|i| format!("{}", (i * 7919 % 201) as f32 / 1000.0 - 0.1)).collect();
    let constant = format!("const %w: f32[512,512] = [{}]", weight.join(", "));
    let capture = "capture %w: f32[512,512]";
    let (around, own, operands, other) =
        if inside { ("", &constant[..], "%c, %x", "") } else { (&constant[..], capture, "%c, %x, %w", capture) };
    let source = format!(
        r#"graph "g" {{
            input %c: bool[]
            input %x: f32[3,512]
            {around}
            %y = If({operands}) {{then_branch=graph "yes" {{
                capture %x: f32[3,512]
                {own}
                %m = MatMul(%x, %w)
                %r = Relu(%m)
                output %r
            }}, else_branch=graph "no" {{
                capture %x: f32[3,512]
                {other}
                %n = Neg(%x)
                output %n
            }}}} "if"
            output %y
        }}"#
    );
    text::parse(&source).unwrap()
}

#[test]
fn a_branch_runs_in_the_cpu_executor() {
    for graph in [true, false].map(branches) {
        let graph = verify(&graph).unwrap();
        let x: Vec<f32> = (0..3 * 512).map(|i| (i % 37) as f32 - 18.0).collect();
        let burn = Backend::burn();
        let [ours, theirs] = [Backend::cpu(), burn].map(|b| Parts::new(&graph, &b, &[]).unwrap());
        for yes in [1, 0] {
            let inputs = [Tensor::ints(DType::Bool, &[], &[yes]), Tensor::f32(&[3, 512], &x)];
            let [a, b] = [&ours, &theirs].map(|s| s.run(&inputs).unwrap()[0].as_f32().unwrap().to_vec());
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3), "{yes}");
            let product = |s: &Parts| s.profile(&inputs).unwrap().iter().any(|node| node.kernel.name == "gemm_f32");
            assert_eq!([product(&ours), product(&theirs)], [yes == 1, false]);
        }
    }
}
