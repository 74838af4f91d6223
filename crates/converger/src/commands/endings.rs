//! How people, terminals and service managers end what runs: Ctrl-C, SIGTERM, and SIGHUP of a terminal that was closed, listened for from
//! the moment on that anybody could send one.

use std::fs;
use std::pin::pin;

use futures_util::future::{pending, select};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Stop, spine};

/// The signals that ask for an end.
pub(super) struct Endings {
    interrupt: Signal,
    terminate: Signal,
    /// Nothing, where whoever started us wants it to be ignored (`nohup`).
    hang_up: Option<Signal>,
}

impl Endings {
    /// Listens from here on. Inside of a runtime only.
    pub(super) fn listen() -> Result<Self, Stop> {
        let deaf =
            |error| spine::unready(Stop::failed(format!("cannot listen for signals: {error}")), "look at the limits of this process");
        let listen = |kind| signal(kind).map_err(deaf);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hang_up = if ignores_hang_up(&status) { None } else { Some(listen(SignalKind::hangup())?) };
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())?, hang_up })
    }

    /// The next one.
    pub(super) async fn next(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => pending().await,
            }
        };
        let (interrupt, terminate) = (pin!(self.interrupt.recv()), pin!(self.terminate.recv()));
        select(select(interrupt, terminate), pin!(hang_up)).await;
    }
}

/// Whether SIGHUP, the first of all signals, is in the mask of those that are ignored. Listening to it would end that.
fn ignores_hang_up(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_ignores_stays_ignored() {
        assert!(ignores_hang_up("Name:\tconverger\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hang_up("SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"));
        assert!(!ignores_hang_up(""));
    }
}
