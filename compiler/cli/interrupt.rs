//! Ctrl-C: the first asks the work to stop at the next good place, the second ends at once.

use std::sync::atomic::{AtomicBool, Ordering};

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Installs the handler.
pub fn install() {
    let handler = || {
        if STOPPED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        eprintln!("stopping; press Ctrl-C again to end at once");
    };
    if let Err(e) = ctrlc::set_handler(handler) {
        tracing::warn!("Ctrl-C will end the program at once: {e}");
    }
}

/// Whether the user asked to stop.
pub fn stopped() -> bool {
    STOPPED.load(Ordering::SeqCst)
}
