//! Signals and `--timeout` during an apply. The first request starts nothing new and waits for operations in flight; the second exits at once.

use std::io::Write as _;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use converger_engine::executor::RunSignal;
use converger_runtime::run_clock::RunClock;
use converger_runtime::{Environment, StopCause, StopHandle};
use futures_util::future::{Either, select};
use tokio::sync::watch;

use super::super::display::Display;
use super::super::signals::StopSignals;
use super::super::{CommandError, inputs, runtime};
use crate::exit_status::ExitStatus;
use crate::progress;

/// How long a terminal may take to accept a line.
const SHOW_TIMEOUT: Duration = Duration::from_millis(300);

/// How long the process may take to write its result after the second request.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Handles signals from the first observation on. Before that a signal ends the process, which has neither written nor sent anything.
pub(super) fn listen_once_observed(environment: &Environment, display: &Arc<Display>, timeout: Option<u64>) {
    let (stop_handle, clock) = (environment.stop_handle().clone(), environment.clock().clone());
    display.on_observed(move || {
        // Without signal handlers the run continues: a signal then ends the process, and the journal makes that safe.
        if let Err(stop) = listen(stop_handle, clock, timeout) {
            let _ = writeln!(anstream::stderr(), "{}", stop.message_text());
        }
    });
}

fn listen(stop_handle: StopHandle, clock: RunClock, timeout: Option<u64>) -> Result<(), CommandError> {
    let signals = StopSignals::listen()?;
    start_watchdog(stop_handle.subscribe())?;
    tokio::spawn(forward_stop_requests(signals, stop_handle, timeout, clock));
    Ok(())
}

async fn forward_stop_requests(mut signals: StopSignals, stop_handle: StopHandle, timeout: Option<u64>, clock: RunClock) {
    let is_late = match timeout {
        Some(seconds) => matches!(select(pin!(clock.after(seconds)), pin!(signals.next())).await, Either::Left(_)),
        None => {
            signals.next().await;
            false
        }
    };
    // Request before message: the terminal may accept no output.
    stop_handle.request(RunSignal::Drain, if is_late { StopCause::Timeout } else { StopCause::Signal });
    show_and_wait(match (is_late, stop_handle.has_sent()) {
        (true, true) => "timeout reached: starting nothing new, waiting for operations in flight (Ctrl-C exits at once)",
        (true, false) => "timeout reached: nothing was sent, and nothing will be",
        (false, true) => "stopping: starting nothing new, waiting for operations in flight (Ctrl-C again exits at once)",
        (false, false) => "stopping: nothing was sent, and nothing will be (Ctrl-C again exits at once)",
    });
    signals.next().await;
    stop_handle.request(RunSignal::Leave, StopCause::Signal);
}

/// Starts a thread that ends the process a while after the second request, or after a second signal that the runtime did not handle, whatever the
/// other threads wait for. Nothing is lost: the journal has every operation in flight.
fn start_watchdog(mut signal: watch::Receiver<RunSignal>) -> Result<(), CommandError> {
    let runtime = runtime()?;
    let mut signals = {
        let _inside = runtime.enter();
        StopSignals::listen()?
    };
    let watch = move || {
        runtime.block_on(async {
            let two_signals = pin!(async {
                signals.next().await;
                signals.next().await;
            });
            // After `--timeout` the first signal is the second request.
            let left = pin!(async { signal.wait_for(|signal| *signal == RunSignal::Leave).await.is_ok() });
            if let Either::Right((false, two_signals)) = select(two_signals, left).await {
                two_signals.await;
            }
            tokio::time::sleep(LEAVE_TIMEOUT).await;
        });
        std::process::exit(ExitStatus::Held.exit_number().into());
    };
    thread::Builder::new().spawn(watch).map(drop).map_err(|error| inputs::no_thread(&error))
}

/// Shows a line and waits for it, but not long: the terminal may accept no output.
fn show_and_wait(line: &'static str) {
    let receiver = mention(line);
    progress::wait_for_pending_lines(SHOW_TIMEOUT);
    let _ = receiver.map(|receiver| receiver.recv_timeout(SHOW_TIMEOUT));
}

/// Shows a line without waiting for it. If a new thread writes it, the receiver gets a message when it has.
pub(in crate::commands) fn mention(line: &'static str) -> Option<mpsc::Receiver<()>> {
    if progress::print_above_spinner(line) {
        return None;
    }
    let (sender, receiver) = mpsc::channel();
    let started = thread::Builder::new().spawn(move || {
        let _ = writeln!(anstream::stderr(), "{line}");
        let _ = sender.send(());
    });
    // Without a thread the line is not shown: waiting for the terminal here would delay the second signal.
    started.is_ok().then_some(receiver)
}
