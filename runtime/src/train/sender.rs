//! Batches sent to a device while the one before is computed.

use super::loader::{Epoch, TrainBatch};
use crate::{burn::tensor::Value, device::Device};
use compress_compiler::error::{Error, Result};
use std::{
    cell::OnceCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{self, Receiver, SyncSender},
    thread,
};

/// An epoch, where it is sent, and who gets its batches. `None` behind the last says that it was the last.
type Order = (Epoch, Device, SyncSender<Option<Result<TrainBatch>>>);

thread_local! {
    /// The thread that sends for this one, for as long as this one lives. On a GPU each thread has a stream with memory of its own: a new
    /// thread for each epoch would take more and more.
    static SENDER: OnceCell<mpsc::Sender<Order>> = const { OnceCell::new() };
}

/// The batches of an epoch, on the device. One is there ahead of its use.
pub struct Sent(Receiver<Option<Result<TrainBatch>>>);

impl Sent {
    /// Begins to send.
    ///
    /// # Errors
    /// Limit when a thread can't be started.
    pub fn new(epoch: Epoch, device: &Device) -> Result<Self> {
        // Without room: the thread holds one batch until it is taken.
        let (to, from) = mpsc::sync_channel(0);
        SENDER.with(|sender| {
            let orders = match sender.get() {
                Some(orders) => orders,
                None => {
                    let (orders, taken) = mpsc::channel();
                    let thread = thread::Builder::new().name("sender".into()).spawn(move || work(&taken));
                    thread.map_err(|e| Error::limit(format!("a thread for sending data cannot be started: {e}")))?;
                    sender.get_or_init(|| orders)
                }
            };
            let gone = |_| Error::bug("the thread that sends data went away");
            orders.send((epoch, device.clone(), to)).map_err(gone)
        })?;
        Ok(Self(from))
    }
}

impl Iterator for Sent {
    type Item = Result<TrainBatch>;

    fn next(&mut self) -> Option<Result<TrainBatch>> {
        self.0.recv().unwrap_or_else(|_| Some(Err(Error::bug("the thread that sends data went away"))))
    }
}

/// Sends epoch after epoch, each until it ends or nobody takes its batches.
fn work(orders: &Receiver<Order>) {
    for (mut epoch, device, to) in orders {
        loop {
            // Burn may panic where a device refuses something, and the next epoch needs this thread.
            let next = || epoch.next().map(|batch| batch.and_then(|batch| send(batch, &device)));
            let next = catch_unwind(AssertUnwindSafe(next));
            let next = next.unwrap_or_else(|_| Some(Err(Error::bug("making or sending a batch panicked"))));
            let is_last = next.is_none();
            // Nobody may listen any more.
            if to.send(next).is_err() || is_last {
                break;
            }
        }
    }
}

fn send(batch: TrainBatch, device: &Device) -> Result<TrainBatch> {
    let sent = batch.inputs.iter().map(|t| Value::input(t, device)).collect::<Result<_>>()?;
    Ok(TrainBatch { sent: Some(sent), ..batch })
}
