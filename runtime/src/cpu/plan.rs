//! From lowered operators and shapes to steps and places.

use super::{
    arena::{Life, assign},
    cost,
    lowering::{Form, ValueId},
    program::Program,
    run::{Check, Constant, Plan},
    steps::{Call, Element, Kernel, Operands, Place, READS, Step, View},
};
use compress_compiler::{
    error::{Error, Result},
    tensor::{DType, Tensor},
};
use compress_kernels::{self as kernels, Isa};
use rustc_hash::FxHashMap;

/// In which order the elements of a value lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Layout {
    /// As ONNX has them.
    Plain,
    /// The axis of channels, which is the second, last: one row a pixel.
    Pixels,
}

impl Layout {
    /// The sizes in the order in which they lie.
    pub fn storage(self, dims: &[usize]) -> Vec<usize> {
        let mut dims = dims.to_vec();
        if self == Layout::Pixels && dims.len() > 2 {
            let channels = dims.remove(1);
            dims.push(channels);
        }
        dims
    }

    /// Where the axis `axis` of `rank` lies.
    pub fn place_of(self, axis: usize, rank: usize) -> usize {
        match axis {
            1 if self == Layout::Pixels && rank > 2 => rank - 1,
            2.. if self == Layout::Pixels => axis - 1,
            _ => axis,
        }
    }

    /// Rows and width of a value.
    pub fn rows(self, dims: &[usize]) -> (usize, usize) {
        match self.storage(dims).split_last() {
            Some((width, rows)) => (rows.iter().product(), *width),
            None => (1, 1),
        }
    }
}

/// Whether both layouts are the same for a value of these sizes.
fn coincide(dims: &[usize]) -> bool {
    dims.len() < 3 || dims[1] == 1 || dims[2..].iter().product::<usize>() <= 1
}

/// Where a value was put, and how.
#[derive(Clone, Copy)]
struct Located {
    layout: Layout,
    view: View,
}

/// A part of a Concat, to be written where the whole lies.
struct Part {
    whole: ValueId,
    axis: usize,
    start: usize,
}

/// Makes a plan.
pub(super) struct Planner<'p> {
    program: &'p Program,
    shapes: Vec<Vec<usize>>,
    threads: usize,
    is_piece: bool,
    located: FxHashMap<ValueId, Located>,
    converted: FxHashMap<(ValueId, Layout), View>,
    parts: FxHashMap<ValueId, Part>,
    lives: Vec<Life>,
    constants: Vec<Constant>,
    steps: Vec<Step>,
    scratch: usize,
    checks: Vec<Check>,
    instruction: Option<usize>,
}

/// Plans `program` for values of `shapes`; `is_piece` says that a batch is larger.
///
/// # Errors
/// What planning an instruction raises, naming the node.
pub(super) fn plan(program: &Program, shapes: Vec<Vec<usize>>, threads: usize, is_piece: bool) -> Result<Plan> {
    let mut p = Planner {
        program,
        shapes,
        threads,
        is_piece,
        located: FxHashMap::default(),
        converted: FxHashMap::default(),
        parts: FxHashMap::default(),
        lives: vec![],
        constants: vec![],
        steps: vec![],
        scratch: 0,
        checks: vec![],
        instruction: None,
    };
    for (i, id) in program.inputs.iter().enumerate() {
        let (rows, width) = Layout::Plain.rows(&p.shapes[*id]);
        let mut view = View::dense(Place::Input(i), rows, width);
        if program.values[*id].dtype == DType::I8 {
            let unsigned = p.buffer(*id, rows, width);
            p.step("relabel", *id, &[view], unsigned, 0, 0, |o| kernels::xor_sign(o.slice(0), o.out().data()));
            view = unsigned;
        }
        p.located.insert(*id, Located { layout: Layout::Plain, view });
    }
    p.find_parts();
    let mut shown = vec![];
    let mut watched: FxHashMap<ValueId, Vec<usize>> = FxHashMap::default();
    for (place, id) in &program.watch {
        watched.entry(*id).or_default().push(*place);
    }
    for (i, instruction) in program.instructions.iter().enumerate() {
        p.instruction = Some(i);
        instruction.op.plan(&mut p, &instruction.inputs, instruction.output).map_err(|e| e.at(&instruction.label))?;
        if let Some(places) = watched.get(&instruction.output) {
            let view = p.dense(instruction.output);
            p.touch(&view);
            shown.extend(places.iter().map(|place| (p.steps.len(), *place, view)));
        }
    }
    p.instruction = None;
    let mut outputs = vec![];
    for id in &program.outputs {
        outputs.push((p.dense(*id), program.values[*id].dtype, p.shapes[*id].clone()));
    }
    for (view, ..) in &outputs {
        p.touch(view);
    }
    let (places, memory) = assign(&p.lives);
    let Planner { checks, steps, constants, scratch, .. } = p;
    Ok(Plan { checks, threads, steps, constants, places, memory, scratch, outputs, shown })
}

impl Planner<'_> {
    /// The shape of a value.
    pub fn dims(&self, id: ValueId) -> &[usize] {
        &self.shapes[id]
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.program.isa
    }

    /// The layout in which a value lies.
    pub fn layout(&self, id: ValueId) -> Layout {
        self.located[&id].layout
    }

    /// Whether a value is held as floats or as codes.
    pub fn form(&self, id: ValueId) -> Form {
        self.program.values[id].form
    }

    /// Bytes of an element of a value.
    pub fn size(&self, id: ValueId) -> usize {
        match self.form(id) {
            Form::Float => size_of::<f32>(),
            Form::Codes => self.program.values[id].dtype.size(),
        }
    }

    /// Finds parts of Concats that nobody else reads.
    fn find_parts(&mut self) {
        let program = self.program;
        let mut readers = vec![0; program.values.len()];
        let ends = program.outputs.iter().chain(program.watch.iter().map(|w| &w.1));
        for id in program.instructions.iter().flat_map(|l| &l.inputs).chain(ends).chain(&program.inputs) {
            readers[*id] += 1;
        }
        for instruction in &program.instructions {
            let Some(axis) = instruction.op.joins_along() else { continue };
            let mut start = 0;
            for id in &instruction.inputs {
                if readers[*id] == 1 {
                    self.parts.insert(*id, Part { whole: instruction.output, axis, start });
                }
                start += self.shapes[*id][axis];
            }
        }
    }

    /// A place for elements as those of `id`.
    pub fn buffer(&mut self, id: ValueId, rows: usize, width: usize) -> View {
        self.lives.push(Life { bytes: rows * width * self.size(id), first: self.steps.len(), last: self.steps.len() });
        View::dense(Place::Buffer(self.lives.len() - 1), rows, width)
    }

    fn touch(&mut self, view: &View) {
        if let Place::Buffer(b) = view.place {
            self.lives[b].last = self.lives[b].last.max(self.steps.len());
        }
    }

    /// A place for `id`, which the current instruction makes in `layout`.
    pub fn output(&mut self, id: ValueId, layout: Layout) -> View {
        if let Some(view) = self.placed_in_whole(id, layout) {
            self.located.insert(id, Located { layout, view });
            return view;
        }
        self.fresh(id, layout)
    }

    /// A place for `id` that is not within another value.
    pub fn fresh(&mut self, id: ValueId, layout: Layout) -> View {
        let (rows, width) = layout.rows(&self.shapes[id]);
        let view = self.buffer(id, rows, width);
        self.located.insert(id, Located { layout, view });
        view
    }

    /// A place for `id` as ONNX has it, and for so many rows behind it: all of both.
    pub fn followed(&mut self, id: ValueId, more: usize) -> View {
        let (rows, width) = Layout::Plain.rows(&self.shapes[id]);
        let whole = self.buffer(id, rows + more, width);
        self.located.insert(id, Located { layout: Layout::Plain, view: View { rows, ..whole } });
        whole
    }

    /// The place of a part within the whole, which gets the layout of its first part; none where
    /// the part's rows would not be rows there.
    fn placed_in_whole(&mut self, id: ValueId, layout: Layout) -> Option<View> {
        let Part { whole, axis, start } = *self.parts.get(&id)?;
        let (own, all) = (layout.storage(&self.shapes[id]), layout.storage(&self.shapes[whole]));
        let (rows, width) = layout.rows(&self.shapes[id]);
        let at = layout.place_of(axis, all.len());
        let (offset, stride) = if at + 1 == all.len() {
            (start, all[at])
        } else if own[..at].iter().all(|n| *n == 1) {
            (start * own[at + 1..].iter().product::<usize>(), width)
        } else {
            return None;
        };
        if !self.located.contains_key(&whole) {
            self.fresh(whole, layout);
        }
        let Located { layout: of_whole, view } = self.located[&whole];
        (of_whole == layout).then_some(View { place: view.place, offset, rows, width, stride })
    }

    /// The layout of a value that was placed already, as some of its parts were.
    pub fn placed(&self, id: ValueId) -> Option<Layout> {
        self.located.get(&id).map(|l| l.layout)
    }

    /// Lets `id` be what lies at `view` already.
    pub fn alias(&mut self, id: ValueId, view: View, layout: Layout) {
        self.located.insert(id, Located { layout, view });
    }

    /// Keeps a constant, which `id` becomes.
    pub fn constant(&mut self, id: ValueId, data: &Tensor) -> Result<()> {
        let constant = match self.program.values[id].form {
            Form::Float => Constant::Float(data.as_f32().ok_or_else(|| Error::bug("a float constant"))?.into_owned()),
            Form::Codes => {
                let flip = if data.dtype() == DType::I8 { 128 } else { 0 };
                Constant::Codes(data.bytes().iter().map(|b| b ^ flip).collect())
            }
        };
        self.constants.push(constant);
        let (rows, width) = Layout::Plain.rows(&self.shapes[id]);
        let view = View::dense(Place::Constant(self.constants.len() - 1), rows, width);
        self.located.insert(id, Located { layout: Layout::Plain, view });
        Ok(())
    }

    /// Where `id` is to be read in `layout`, converted if it must be.
    pub fn read(&mut self, id: ValueId, layout: Layout) -> View {
        let Located { layout: has, view } = self.located[&id];
        if has == layout {
            return view;
        }
        if let Some(view) = self.converted.get(&(id, layout)) {
            return *view;
        }
        let (rows, width) = layout.rows(&self.shapes[id]);
        let made = match coincide(&self.shapes[id]) {
            true => match view.reshaped(rows, width) {
                Some(view) => view,
                None => self.gathered(id, view).reshaped(rows, width).unwrap_or(view),
            },
            false => self.convert(id, view, layout),
        };
        self.converted.insert((id, layout), made);
        made
    }

    /// Where `id` is to be read as ONNX has it, without gaps.
    pub fn dense(&mut self, id: ValueId) -> View {
        let view = self.read(id, Layout::Plain);
        if view.is_dense() { view } else { self.gathered(id, view) }
    }

    /// A copy without gaps.
    pub fn gathered(&mut self, id: ValueId, view: View) -> View {
        if view.is_dense() {
            return view;
        }
        let to = self.buffer(id, view.rows, view.width);
        match self.size(id) {
            1 => self.step("copy", id, &[view], to, 0, 0, |o| kernels::copy::<u8>(o.read(0), o.out())),
            _ => self.step("copy", id, &[view], to, 0, 0, |o| kernels::copy::<f32>(o.read(0), o.out())),
        }
        to
    }

    /// `[N, C, pixels]` to `[N, pixels, C]` or back.
    fn convert(&mut self, id: ValueId, view: View, to: Layout) -> View {
        let view = self.gathered(id, view);
        let dims = &self.shapes[id];
        let (batch, channels, pixels) = (dims[0], dims[1], dims[2..].iter().product::<usize>());
        let (rows, columns) = if to == Layout::Pixels { (channels, pixels) } else { (pixels, channels) };
        if let Place::Constant(i) = view.place {
            let part = view.offset..view.offset + view.len();
            let turned = match &self.constants[i] {
                Constant::Float(x) => Constant::Float(turned(&x[part], batch, rows, columns)),
                Constant::Codes(x) => Constant::Codes(turned(&x[part], batch, rows, columns)),
            };
            self.constants.push(turned);
            let (rows, width) = to.rows(&self.shapes[id]);
            return View::dense(Place::Constant(self.constants.len() - 1), rows, width);
        }
        let made = self.buffer(id, batch * columns, rows);
        let (isa, work) = (self.isa(), cost::bytes(2 * made.len() * self.size(id)));
        match self.size(id) {
            1 => self.step("transpose", id, &[view], made, 0, work, move |o| {
                kernels::transpose::<u8>(isa, o.slice(0), batch, rows, columns, o.out(), o.parts);
            }),
            _ => self.step("transpose", id, &[view], made, 0, work, move |o| {
                kernels::transpose::<f32>(isa, o.slice(0), batch, rows, columns, o.out(), o.parts);
            }),
        }
        let (rows, width) = to.rows(&self.shapes[id]);
        View { rows, width, stride: width, ..made }
    }

    /// Whether a batch is cut into several of what is planned. Its results must not depend on that.
    pub fn is_piece(&self) -> bool {
        self.is_piece
    }

    /// Has `find` look at the elements of `id`, an input, before each run.
    ///
    /// # Errors
    /// Unsupported for what is not an input.
    pub fn check(&mut self, id: ValueId, find: impl Fn(&[u8]) -> Result<()> + Send + Sync + 'static) -> Result<()> {
        let input = self.program.inputs.iter().position(|input| *input == id);
        let input = input.ok_or_else(|| Error::unsupported("elements that are made here"))?;
        let label = self.instruction.map_or(String::new(), |i| self.program.instructions[i].label.clone());
        self.checks.push(Check { input, label, find: Box::new(find) });
        Ok(())
    }

    /// Into how many parts `work` nanoseconds are divided.
    pub fn parts(&self, work: u64) -> usize {
        cost::parts(work, self.threads)
    }

    /// Adds a step that makes `made` of values at `reads`, which have elements of the same size as what is written.
    #[allow(clippy::too_many_arguments)]
    pub fn step(
        &mut self,
        kernel: impl Into<Kernel>,
        made: ValueId,
        reads: &[View],
        write: View,
        scratch: usize,
        work: u64,
        call: impl Fn(&mut Operands) + Send + Sync + 'static,
    ) {
        self.step_from(self.size(made), kernel, made, reads, write, scratch, work, call);
    }

    /// As [`Planner::step`], where elements of `size` bytes are read.
    #[allow(clippy::too_many_arguments)]
    pub fn step_from(
        &mut self,
        size: usize,
        kernel: impl Into<Kernel>,
        made: ValueId,
        reads: &[View],
        write: View,
        scratch: usize,
        work: u64,
        call: impl Fn(&mut Operands) + Send + Sync + 'static,
    ) {
        let reads = reads.iter().map(|view| (*view, size)).collect();
        self.step_of(kernel, made, reads, write, scratch, work, call);
    }

    /// As [`Planner::step`], where the elements of each value that is read have their own size in bytes.
    #[allow(clippy::too_many_arguments)]
    pub fn step_of(
        &mut self,
        kernel: impl Into<Kernel>,
        made: ValueId,
        reads: Vec<(View, usize)>,
        write: View,
        scratch: usize,
        work: u64,
        call: impl Fn(&mut Operands) + Send + Sync + 'static,
    ) {
        assert!(reads.len() <= READS, "a step of {} operands", reads.len());
        reads.iter().for_each(|(view, _)| self.touch(view));
        self.touch(&write);
        self.scratch = self.scratch.max(scratch);
        let parts = self.parts(work);
        let (call, size): (Call, _) = (Box::new(call), self.size(made));
        self.steps.push(Step { instruction: self.instruction, kernel: kernel.into(), reads, write, size, parts, call });
    }
}

fn turned<T: Element>(x: &[T], batch: usize, rows: usize, columns: usize) -> Vec<T> {
    let mut y = Vec::with_capacity(x.len());
    for b in 0..batch {
        for c in 0..columns {
            y.extend((0..rows).map(|r| x[(b * rows + r) * columns + c]));
        }
    }
    y
}
