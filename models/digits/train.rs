//! Trains the digits network and writes it as `models/digits/digits.onnx`.
//!
//! ```text
//! cargo run --release --example digits
//! ```
//!
//! See `models/README.md` for what the network is for, and for what it reaches.

use burn::{
    lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig,
    module::{Module, Param},
    nn::{
        BatchNorm, BatchNormConfig, Initializer, Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        loss::CrossEntropyLoss,
    },
    optim::{AdamWConfig, GradientsParams},
    tensor::{Device, Int, Tensor, TensorData, activation::relu, module::max_pool2d, ops::MaxPoolOptions},
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::NodeId,
    onnx,
    op::Op,
    ops::{
        batch_norm,
        conv::Conv,
        gemm::Gemm,
        pool::{Pool, PoolKind},
        reshape::Flatten,
        source::Input,
        unary::Unary,
        window::Window,
    },
    tensor::{DType, Tensor as Constant},
    value::{Dim, Fact},
};
use compress_runtime::dataset::{Dataset, InputSpec, Reading};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::path::Path;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/digits");
const SIDE: usize = 8;
const PIXELS: usize = SIDE * SIDE;
const CLASSES: usize = 10;

const SEED: u64 = 1;
const EPOCHS: usize = 60;
const BATCH: usize = 64;
const LEARNING_RATE: f64 = 2e-3;
const WEIGHT_DECAY: f32 = 0.05;
/// Times the sum of the magnitudes of the inner weights. It draws those that matter little
/// towards zero, where they can be left out later, and leaves the others to do the work.
const SPARSITY: f64 = 3e-4;
const EPSILON: f64 = 1e-5;

/// The pictures of a set, in memory: it is small.
struct Digits {
    pictures: Vec<f32>,
    labels: Vec<i64>,
}

impl Digits {
    fn open(name: &str) -> Result<Self> {
        let shape = vec![Dim::Unknown, 1.into(), SIDE.into(), SIDE.into()];
        let spec = InputSpec::new("input", DType::F32, shape);
        let set = Dataset::open(&Path::new(FOLDER).join(name), &[spec], &Reading::default())?;
        println!("{}", set.describe());
        let all = set.batch(&(0..set.len()).collect::<Vec<_>>())?;
        let pictures = all.inputs[0].as_f32().ok_or_else(|| Error::bug("the pictures are f32"))?.into_owned();
        let labels = all.labels.ok_or_else(|| Error::data("the set has no labels"))?;
        Ok(Self { pictures, labels })
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn labels(&self, at: &[usize], device: &Device) -> Tensor<1, Int> {
        let labels: Vec<i64> = at.iter().map(|i| self.labels[*i]).collect();
        Tensor::from_data(TensorData::new(labels, [at.len()]), device)
    }

    /// The pictures `at`, each moved by what `shift` says: columns to the right, rows down.
    fn pictures(&self, at: &[usize], mut shift: impl FnMut() -> [i32; 2], device: &Device) -> Tensor<4> {
        let mut out = Vec::with_capacity(at.len() * PIXELS);
        for i in at {
            let picture = &self.pictures[i * PIXELS..(i + 1) * PIXELS];
            let [right, down] = shift();
            for pixel in 0..PIXELS {
                let source = |to: usize, by| usize::try_from(to as i32 - by).ok().filter(|at| *at < SIDE);
                let from = source(pixel / SIDE, down).zip(source(pixel % SIDE, right));
                out.push(from.map_or(0.0, |(row, column)| picture[row * SIDE + column]));
            }
        }
        Tensor::from_data(TensorData::new(out, [at.len(), 1, SIDE, SIDE]), device)
    }
}

/// A convolution of 3x3 that keeps the size, BatchNormalization, Relu.
#[derive(Module, Debug)]
struct Block {
    conv: Conv2d,
    bn: BatchNorm,
}

impl Block {
    fn new(from: usize, to: usize, device: &Device) -> Self {
        let conv = Conv2dConfig::new([from, to], [3, 3])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_initializer(Initializer::KaimingNormal { gain: 2f64.sqrt(), fan_out_only: false })
            // BatchNormalization takes off the mean, and a bias with it.
            .with_bias(false);
        Self { conv: conv.init(device), bn: BatchNormConfig::new(to).with_epsilon(EPSILON).init(device) }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        relu(self.bn.forward(self.conv.forward(x)))
    }
}

#[derive(Module, Debug)]
struct Net {
    block1: Block,
    block2: Block,
    block3: Block,
    fc: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            block1: Block::new(1, 32, device),
            block2: Block::new(32, 64, device),
            block3: Block::new(64, 64, device),
            fc: LinearConfig::new(64 * (SIDE / 4) * (SIDE / 4), CLASSES).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let halve = |x| max_pool2d(x, MaxPoolOptions::new([2, 2]));
        let x = halve(self.block2.forward(self.block1.forward(x)));
        let x = halve(self.block3.forward(x));
        self.fc.forward(x.flatten(1, 3))
    }

    /// The sum of the magnitudes of the inner weights.
    fn magnitude(&self) -> Tensor<1> {
        self.block2.conv.weight.val().abs().sum() + self.block3.conv.weight.val().abs().sum()
    }

    /// How many of `digits` come out right.
    fn correct(&self, digits: &Digits, device: &Device) -> usize {
        let all: Vec<usize> = (0..digits.len()).collect();
        let answers = self.valid().forward(digits.pictures(&all, || [0, 0], device)).argmax(1);
        let answers = answers.into_data().iter::<i64>().collect::<Vec<_>>();
        answers.iter().zip(&digits.labels).filter(|(a, b)| a == b).count()
    }
}

fn train(train: &Digits, test: &Digits) -> Result<Net> {
    let plain = Device::flex();
    let device = plain.clone().autodiff();
    device.seed(SEED);
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut net = Net::new(&device);
    let steps = train.len().div_ceil(BATCH) * EPOCHS;
    let mut optimizer = AdamWConfig::new().with_weight_decay(WEIGHT_DECAY).init();
    let mut schedule = CosineAnnealingLrSchedulerConfig::new(LEARNING_RATE, steps).init().map_err(Error::bug)?;
    let cross_entropy = CrossEntropyLoss::new(None, &device);
    let mut order: Vec<usize> = (0..train.len()).collect();
    for epoch in 1..=EPOCHS {
        order.shuffle(&mut rng);
        let mut sum = 0.0;
        for at in order.chunks(BATCH) {
            let shift = || [rng.random_range(-1..=1), rng.random_range(-1..=1)];
            let x = train.pictures(at, shift, &device);
            let loss = cross_entropy.forward(net.forward(x), train.labels(at, &device));
            sum += loss.clone().into_scalar::<f64>() * at.len() as f64;
            let grads = (loss + net.magnitude() * SPARSITY).backward();
            let grads = GradientsParams::from_grads(grads, &net);
            net = optimizer.step(schedule.step(), net, grads);
        }
        let correct = net.correct(test, &plain);
        let (loss, accuracy) = (sum / train.len() as f64, 100.0 * correct as f64 / test.len() as f64);
        println!("epoch {epoch:2}  loss {loss:.4}  test {accuracy:.2}%  ({correct}/{})", test.len());
    }
    Ok(net.valid())
}

/// Builds a graph as a chain, naming things as PyTorch's exporter does.
struct Chain {
    graph: Graph,
    last: NodeId,
}

impl Chain {
    fn new() -> Result<Self> {
        let mut graph = Graph::new("digits");
        let mut shape = vec![Dim::Sym("batch".into())];
        shape.extend([1, SIDE, SIDE].map(Dim::from));
        let fact = Fact::new(Some(DType::F32), Some(shape));
        let last = graph.add_input("input", fact, Input { default: None }.into())?;
        Ok(Self { graph, last })
    }

    fn constant<const D: usize>(&mut self, name: &str, tensor: Tensor<D>) -> Result<NodeId> {
        let shape = tensor.dims();
        let data = tensor.into_data().try_to_vec::<f32>().map_err(|e| Error::bug(format!("{e:?}")))?;
        Ok(self.graph.add_constant(name, Constant::f32(&shape, &data)))
    }

    fn add(&mut self, name: &str, op: impl Into<Op>, constants: &[NodeId], output: &str) -> Result<()> {
        let operands: Vec<_> = [&[self.last], constants].concat().into_iter().map(|n| Some(n.into())).collect();
        self.last = self.graph.add_node(name, op.into(), &operands, &[output])?;
        Ok(())
    }

    /// Adds an operator whose output is called after it.
    fn step(&mut self, name: &str, op: impl Into<Op>, constants: &[NodeId]) -> Result<()> {
        self.add(name, op, constants, &format!("{name}_output_0"))
    }

    fn block(&mut self, i: usize, block: &Block) -> Result<()> {
        let weight = self.constant(&format!("conv{i}.weight"), block.conv.weight.val())?;
        let window = Window { pads: vec![1; 4], ..Window::default() };
        self.step(&format!("/conv{i}/Conv"), Conv { window, group: 1, kernel: vec![3, 3] }, &[weight])?;
        let statistics = [
            self.constant(&format!("bn{i}.weight"), block.bn.gamma.val())?,
            self.constant(&format!("bn{i}.bias"), block.bn.beta.val())?,
            self.constant(&format!("bn{i}.running_mean"), block.bn.running_mean.value())?,
            self.constant(&format!("bn{i}.running_var"), block.bn.running_var.value())?,
        ];
        // ONNX counts what stays of the old statistics, Burn what comes of the new.
        let momentum = 1.0 - block.bn.momentum as f32;
        let norm = batch_norm::BatchNorm { epsilon: EPSILON as f32, momentum, training: false };
        self.step(&format!("/bn{i}/BatchNormalization"), norm, &statistics)?;
        self.step(&format!("/relu{i}/Relu"), Unary::Relu, &[])
    }

    fn pool(&mut self, i: usize) -> Result<()> {
        let window = Window { strides: vec![2; 2], ..Window::default() };
        let pool = Pool::new(PoolKind::Max, vec![2; 2], window);
        self.step(&format!("/pool{i}/MaxPool"), pool, &[])
    }
}

fn graph(net: &Net) -> Result<Graph> {
    let mut chain = Chain::new()?;
    chain.block(1, &net.block1)?;
    chain.block(2, &net.block2)?;
    chain.pool(1)?;
    chain.block(3, &net.block3)?;
    chain.pool(2)?;
    chain.step("/Flatten", Flatten { axis: 1 }, &[])?;
    let weight = chain.constant("fc.weight", net.fc.weight.val().transpose())?;
    let bias = net.fc.bias.as_ref().map(Param::val).ok_or_else(|| Error::bug("the layer has a bias"))?;
    let bias = chain.constant("fc.bias", bias)?;
    let gemm = Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: true };
    chain.add("/fc/Gemm", gemm, &[weight, bias], "logits")?;
    chain.graph.add_output("logits", chain.last.into());
    Ok(chain.graph)
}

fn main() -> Result<()> {
    let net = train(&Digits::open("train.npz")?, &Digits::open("test.npz")?)?;
    let model = onnx::Model::new(graph(&net)?);
    let path = Path::new(FOLDER).join("digits.onnx");
    onnx::write(&model, &path, true)?;
    println!("wrote {}", path.display());
    Ok(())
}
