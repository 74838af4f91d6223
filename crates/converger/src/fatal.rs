//! What this program does when the disk may have lost an acknowledged write: it says so and ends at once (S18).

use std::io::{self, Write as _};
use std::time::Duration;

use converger_core::failure::FailureCode;
use converger_runtime::state_dir::OnFatal;
use converger_store::FatalCause;

use crate::exit_status::ExitStatus;
use crate::progress;

/// Ends the process without tidying up: anything written from here on could be taken for true.
pub(crate) fn end_process() -> OnFatal {
    Box::new(|fatal| {
        progress::wait_for_pending_lines(Duration::from_millis(300));
        let code = FailureCode::JournalUnwritable.word();
        let (what, help) = match fatal {
            FatalCause::DurabilityUnknown(cause) => {
                (format!("the disk of the state is in doubt ({cause})"), "look at the disk and make room on it")
            }
            FatalCause::FileReplaced(cause) => {
                (format!("what is written would be lost ({cause})"), "put the state back as it was, where it was")
            }
        };
        // Standard error may be gone too; that must not keep the process alive.
        let _ = writeln!(io::stderr(), "error[{code}]: {what}; the program ends now");
        let _ = writeln!(io::stderr(), "help: {help}; the next apply finds out what became of what was under way");
        std::process::exit(i32::from(ExitStatus::Failed.exit_number()));
    })
}
