//! How people, terminals and service managers end what runs: Ctrl-C, SIGTERM, and SIGHUP of a terminal that was closed, listened for from
//! the moment on that anybody could send one.

use std::fs;
use std::pin::pin;

use futures_util::future::{Either, pending, select};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{CommandError, inputs};

/// The signals that ask for an end.
pub(super) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    /// None if the parent process has it ignored (`nohup`).
    hang_up: Option<Signal>,
}

impl StopSignals {
    /// Listens from here on. Inside of a runtime only.
    pub(super) fn listen() -> Result<Self, CommandError> {
        let deaf = |error| inputs::limited(format!("cannot listen for signals: {error}"), "look at the limits of this process");
        let listen = |kind| signal(kind).map_err(deaf);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hang_up = if ignores_hang_up(&status) { None } else { Some(listen(SignalKind::hangup())?) };
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())?, hang_up })
    }

    /// The next one. A terminal that is closed says so once: the kernel, the shell and the terminal emulator may all send it, and
    /// nobody asked twice for that.
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

/// Whether SIGHUP, the first of all signals, is in the mask of those that are ignored. Listening to it would end that.
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
            // The process that runs this test may have it ignored.
            let listen = |kind| signal(kind).expect("listens");
            let hang_up = Some(listen(SignalKind::hangup()));
            let mut endings =
                StopSignals { interrupt: listen(SignalKind::interrupt()), terminate: listen(SignalKind::terminate()), hang_up };
            let send = |signal| rustix::process::kill_process(rustix::process::getpid(), signal).expect("sent");
            send(rustix::process::Signal::HUP);
            endings.next().await;
            send(rustix::process::Signal::HUP);
            // Were it heard, this one would be left over.
            send(rustix::process::Signal::TERM);
            endings.next().await;
            assert!(endings.hang_up.is_none() && endings.terminate.recv().now_or_never().is_none());
        });
    }

    #[test]
    fn hangup_ignored_by_nohup_stays_ignored() {
        assert!(ignores_hang_up("Name:\tconverger\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hang_up("SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"));
        assert!(!ignores_hang_up(""));
    }
}
