//! The signals that end a command: SIGINT (Ctrl-C), SIGTERM, and SIGHUP of a closed terminal.

use std::fs;
use std::pin::pin;

use futures_util::future::{Either, pending, select};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{CommandError, inputs};

/// Receives the signals that ask a command to end.
pub(super) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    /// None if the parent process has it ignored (`nohup`), or after the first one.
    hang_up: Option<Signal>,
}

impl StopSignals {
    /// Handles the signals from here on. Must be called inside a runtime.
    pub(super) fn listen() -> Result<Self, CommandError> {
        let limited = |error| inputs::limited(format!("cannot handle signals: {error}"), "check the limits of this process");
        let listen = |kind| signal(kind).map_err(limited);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hang_up = if ignores_hang_up(&status) { None } else { Some(listen(SignalKind::hangup())?) };
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())?, hang_up })
    }

    /// Waits for the next signal. SIGHUP counts once: kernel, shell and terminal may each send one when a terminal is closed.
    pub(super) async fn next(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => pending().await,
            }
        };
        let (interrupt, terminate) = (pin!(self.interrupt.recv()), pin!(self.terminate.recv()));
        let is_closed = matches!(select(select(interrupt, terminate), pin!(hang_up)).await, Either::Right(_));
        if is_closed {
            self.hang_up = None;
        }
    }
}

/// Whether SIGHUP (bit 0) is in the mask of ignored signals. A handler would override that.
fn ignores_hang_up(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn repeated_hangup_counts_once() {
        let runtime = super::super::runtime().map_err(|_| "no runtime").expect("one");
        runtime.block_on(async {
            // The process that runs this test may have SIGHUP ignored.
            let listen = |kind| signal(kind).expect("listens");
            let hang_up = Some(listen(SignalKind::hangup()));
            let mut signals =
                StopSignals { interrupt: listen(SignalKind::interrupt()), terminate: listen(SignalKind::terminate()), hang_up };
            let send = |signal| rustix::process::kill_process(rustix::process::getpid(), signal).expect("sent");
            send(rustix::process::Signal::HUP);
            signals.next().await;
            send(rustix::process::Signal::HUP);
            // If the second SIGHUP counted, SIGTERM would be left over.
            send(rustix::process::Signal::TERM);
            signals.next().await;
            assert!(signals.hang_up.is_none() && signals.terminate.recv().now_or_never().is_none());
        });
    }

    #[test]
    fn hangup_ignored_by_nohup_stays_ignored() {
        assert!(ignores_hang_up("Name:\tconverger\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hang_up("SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"));
        assert!(!ignores_hang_up(""));
    }
}
