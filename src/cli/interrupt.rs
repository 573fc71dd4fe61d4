//! Signals: the first Ctrl-C asks the work to stop at the next good place, the second ends at
//! once; a mapped file that was cut short ends with a message and no crash.

use super::{ranks, terminal};
use std::sync::atomic::{AtomicBool, Ordering};

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Installs the handlers.
pub fn install() {
    let handler = || {
        if STOPPED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        if ranks::is_first() {
            terminal::say("stopping; press Ctrl-C again to end at once");
        }
    };
    if let Err(e) = ctrlc::set_handler(handler) {
        tracing::warn!("Ctrl-C will end the program at once: {e}");
    }
    // SAFETY: `cut_short` has the type that SA_SIGINFO asks for, and all else is zero.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = cut_short as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

/// Reads beyond the end of a mapped file land here. Any other cause is left to the default action,
/// which the next attempt meets.
extern "C" fn cut_short(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    const LINE: &[u8] = b"error: file: a file of the model was cut short while it was read\n";
    // SAFETY: the kernel hands a valid `info`; `write` and `_exit` may be called in a handler.
    unsafe {
        if (*info).si_code == libc::BUS_ADRERR {
            libc::write(libc::STDERR_FILENO, LINE.as_ptr().cast(), LINE.len());
            libc::_exit(6);
        }
    }
}

/// Whether the user asked to stop.
pub fn stopped() -> bool {
    STOPPED.load(Ordering::SeqCst)
}
