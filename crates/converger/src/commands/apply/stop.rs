//! Signals and `--timeout` during an apply: the first starts nothing new and waits for operations in flight, the second leaves at once.

use std::io::Write as _;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use converger_engine::executor::RunSignal;
use converger_runtime::Environment;
use converger_runtime::run_clock::RunClock;
use futures_util::future::{Either, select};
use tokio::sync::watch;

use super::super::display::Display;
use super::super::signals::StopSignals;
use super::super::{CommandError, inputs, runtime};
use crate::exit_status::ExitStatus;
use crate::progress;

/// How long a line may take to be taken by a terminal.
const SHOW_TIMEOUT: Duration = Duration::from_millis(300);

/// How long the process may take to say what is known after it was told to leave.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Listens from the first observation on: before that a signal ends the process, which has neither written nor sent anything.
pub(super) fn listen_once_observed(environment: &Environment, display: &Arc<Display>, timeout: Option<u64>) {
    let (sender, clock) = (environment.stop_sender().clone(), environment.clock().clone());
    let own = Arc::clone(display);
    display.on_observed(move || {
        // A process that cannot listen for signals goes on; a signal then ends it, and the journal makes that safe.
        if let Err(stop) = listen(sender, clock, timeout, own) {
            let _ = writeln!(anstream::stderr(), "{}", stop.message_text());
        }
    });
}

fn listen(sender: watch::Sender<RunSignal>, clock: RunClock, timeout: Option<u64>, display: Arc<Display>) -> Result<(), CommandError> {
    let endings = StopSignals::listen()?;
    watch_over(sender.subscribe())?;
    tokio::spawn(hear(endings, sender, timeout, clock, display));
    Ok(())
}

async fn hear(mut endings: StopSignals, sender: watch::Sender<RunSignal>, timeout: Option<u64>, clock: RunClock, display: Arc<Display>) {
    let is_late = match timeout {
        Some(seconds) => matches!(select(pin!(clock.after(seconds)), pin!(endings.next())).await, Either::Left(_)),
        None => {
            endings.next().await;
            false
        }
    };
    // The request comes before the message: there may be no screen to show it on.
    let _ = sender.send(RunSignal::Drain);
    say(match (is_late, display.is_applying()) {
        (true, true) => "the time of `--timeout` is over: nothing new is begun; what is under way goes on (Ctrl-C leaves at once)",
        (true, false) => "the time of `--timeout` is over: nothing was sent, and nothing will be",
        (false, true) => "nothing new is begun; what is under way goes on (Ctrl-C again leaves at once)",
        (false, false) => "nothing was sent, and nothing will be (Ctrl-C again leaves at once)",
    });
    endings.next().await;
    let _ = sender.send(RunSignal::Leave);
}

/// Ends the process some time after it was told to leave, or after a second signal that the runtime did not hear, by a thread of its own: whatever the
/// rest waits for, a response or a screen, it can be ended. Being killed loses nothing: the journal has what is in flight.
fn watch_over(mut signal: watch::Receiver<RunSignal>) -> Result<(), CommandError> {
    let runtime = runtime()?;
    let mut endings = {
        let _inside = runtime.enter();
        StopSignals::listen()?
    };
    let watch = move || {
        runtime.block_on(async {
            let twice = pin!(async {
                endings.next().await;
                endings.next().await;
            });
            // After `--timeout` the first signal is the second request.
            let left = pin!(async { signal.wait_for(|signal| *signal == RunSignal::Leave).await.is_ok() });
            if let Either::Right((false, twice)) = select(twice, left).await {
                twice.await;
            }
            tokio::time::sleep(LEAVE_TIMEOUT).await;
        });
        std::process::exit(ExitStatus::Held.exit_number().into());
    };
    thread::Builder::new().spawn(watch).map(drop).map_err(|error| inputs::no_thread(&error))
}

/// Shows a line, unless the terminal takes none: nothing waits long for a screen.
fn say(line: &'static str) {
    let shown = mention(line);
    progress::wait_for_pending_lines(SHOW_TIMEOUT);
    let _ = shown.map(|shown| shown.recv_timeout(SHOW_TIMEOUT));
}

/// Shows a line without waiting for it. Where a thread of its own shows it, the receiver learns when it has.
pub(in crate::commands) fn mention(line: &'static str) -> Option<mpsc::Receiver<()>> {
    if progress::print_above_spinner(line) {
        return None;
    }
    let (sender, shown) = mpsc::channel();
    let spoken = thread::Builder::new().spawn(move || {
        let _ = writeln!(anstream::stderr(), "{line}");
        let _ = sender.send(());
    });
    // Without a thread it is not shown: waiting for a screen here would delay the second signal.
    spoken.is_ok().then_some(shown)
}
