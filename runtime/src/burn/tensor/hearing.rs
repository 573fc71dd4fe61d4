//! Gradients that are heard of while the backward pass goes on.
//!
//! Burn runs the steps of the backward pass by their depth, which is one more than that of the deepest value that a step read: what reads
//! a parameter directly would stand at the very end. So each read of a parameter goes through a step that reads a clock besides, a value
//! off the tape that gets deeper with every operator that runs. Its backward step comes right behind that of the operator that read the
//! parameter, and once it was there for each read, the gradient is whole.

use super::{B, Float, extension::Train};
use std::cell::RefCell;

/// By how much the clock gets deeper with an operator: most are no more steps on the tape. Where one is more, gradients are heard of later.
const TICKS: usize = 4;

/// Who hears of gradients: the number of a parameter, and its whole gradient.
pub type Listener = Box<dyn FnMut(usize, Vec<f32>) + Send>;

struct Hearing {
    clock: Option<Float>,
    /// By parameter, the reads whose gradients did not come yet.
    reads: Vec<usize>,
    /// Whose gradients were told.
    told: Vec<bool>,
    listener: Listener,
}

thread_local! {
    static HEARING: RefCell<Option<Hearing>> = const { RefCell::new(None) };
}

/// While this lives, passes on this thread are listened to.
pub struct Ear(());

impl Ear {
    /// `listener` hears of the gradients of so many parameters.
    pub fn new(parameters: usize, listener: Listener) -> Self {
        let (reads, told) = (vec![0; parameters], vec![false; parameters]);
        HEARING.set(Some(Hearing { clock: None, reads, told, listener }));
        Self(())
    }

    /// Of which parameters the listener heard.
    pub fn heard(self) -> Vec<bool> {
        HEARING.with_borrow_mut(|hearing| hearing.as_mut().map(|h| std::mem::take(&mut h.told)).unwrap_or_default())
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        HEARING.set(None);
    }
}

/// Whether anybody listens.
pub fn is_heard() -> bool {
    HEARING.with_borrow(Option::is_some)
}

/// An operator ran.
pub fn tick() {
    HEARING.with_borrow_mut(|hearing| {
        if let Some(clock) = hearing.as_mut().and_then(|h| h.clock.as_mut()) {
            *clock = clock.clone().map(|t| (0..TICKS).fold(t, |t, _| B::train_tick(t)));
        }
    });
}

/// A parameter as an operator reads it. One that kernels of ours don't train on is not heard of.
pub fn read(parameter: Float, number: usize) -> Float {
    if !(parameter.is_tracked() && parameter.has_kernels()) {
        return parameter;
    }
    HEARING.with_borrow_mut(|hearing| {
        let Some(Hearing { clock, reads, .. }) = hearing else { return parameter };
        reads[number] += 1;
        // Whatever it holds is read by nobody.
        let clock = clock.get_or_insert_with(|| parameter.beside_tape()).t.clone();
        parameter.map(|t| B::train_heard(t, clock, number))
    })
}

/// The gradient of one more read of a parameter came; so far all that came is `whole`.
pub(super) fn came(number: usize, whole: impl FnOnce() -> Vec<f32>) {
    HEARING.with_borrow_mut(|hearing| {
        let Some(Hearing { reads, told, listener, .. }) = hearing else { return };
        reads[number] -= 1;
        if reads[number] == 0 {
            told[number] = true;
            listener(number, whole());
        }
    });
}
