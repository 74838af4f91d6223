//! Ends the process when the disk may have lost an acknowledged write (S18).

use std::io::{self, Write as _};
use std::time::Duration;

use converger_core::failure::FailureCode;
use converger_store::{FatalCause, OnFatal};

use crate::exit_status::ExitStatus;
use crate::progress;

/// Ends the process without cleaning up: nothing written after this could be trusted.
pub(crate) fn end_process() -> OnFatal {
    Box::new(|fatal| {
        progress::wait_for_pending_lines(Duration::from_millis(300));
        let code = FailureCode::JournalUnwritable.word();
        let (what, help) = match fatal {
            FatalCause::DurabilityUnknown(cause) => {
                (format!("the disk of the state directory may have lost a write ({cause})"), "check the disk and its free space")
            }
            FatalCause::FileReplaced(cause) => {
                (format!("the files of the state directory were moved or replaced ({cause})"), "put the state directory back where it was")
            }
        };
        // Standard error may be closed too; that must not keep the process alive.
        let _ = writeln!(io::stderr(), "error[{code}]: {what}; the program ends now");
        let _ = writeln!(io::stderr(), "help: {help}; the next apply recovers the operations in flight");
        std::process::exit(i32::from(ExitStatus::Failed.exit_number()));
    })
}
