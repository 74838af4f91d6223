//! The draw target of progress bars: standard error, with the cursor where the terminal may echo a key.
//!
//! `indicatif` leaves the cursor after the last column. A terminal echoes Ctrl-C as `^C` at the cursor, which would start a new line below the
//! spinners and leave a stale one above. While spinners turn, the cursor is therefore moved a few columns to the left.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressDrawTarget, TermLike};
use rustix::termios::tcgetwinsize;

use crate::progress;

/// The columns of `^C` and one after it.
const CTRL_C_ECHO_COLUMNS: usize = 3;

/// Whether spinners turn: they are redrawn over whatever the terminal echoed.
static SPINNER_ACTIVE: AtomicBool = AtomicBool::new(false);

/// Records whether spinners turn.
pub(crate) fn set_spinner_active(is_active: bool) {
    SPINNER_ACTIVE.store(is_active, Ordering::SeqCst);
}

/// Redraws per second, at most.
const REDRAWS_PER_SEC_MAX: u8 = 20;

/// Standard error, or nothing if no progress is drawn there.
pub(crate) fn stderr_draw_target() -> ProgressDrawTarget {
    if progress::stderr_is_screen() {
        ProgressDrawTarget::term_like_with_hz(Box::new(BufferedStderr::default()), REDRAWS_PER_SEC_MAX)
    } else {
        ProgressDrawTarget::hidden()
    }
}

/// Buffers what is drawn until a flush: a screen that is written to piece by piece flickers.
#[derive(Debug, Default)]
struct BufferedStderr(Mutex<String>);

impl BufferedStderr {
    fn push_text(&self, text: &str) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(())
    }

    fn move_cursor(&self, by: usize, sign: char) -> io::Result<()> {
        let mut text = String::new();
        if by > 0 {
            let _ = write!(text, "\u{1b}[{by}{sign}");
        }
        self.push_text(&text)
    }
}

/// Columns and rows; 80 and 24 if the terminal does not say.
fn terminal_size() -> (u16, u16) {
    let size = tcgetwinsize(io::stderr()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or((80, 24), |size| (size.ws_col, size.ws_row))
}

impl TermLike for BufferedStderr {
    fn width(&self) -> u16 {
        terminal_size().0
    }

    fn height(&self) -> u16 {
        terminal_size().1
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        self.move_cursor(lines, 'A')
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        self.move_cursor(lines, 'B')
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.move_cursor(columns, 'C')
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.move_cursor(columns, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.push_text(text)?;
        self.push_text("\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.push_text(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.push_text("\r\u{1b}[2K")
    }

    fn flush(&self) -> io::Result<()> {
        if SPINNER_ACTIVE.load(Ordering::SeqCst) {
            self.move_cursor_left(CTRL_C_ECHO_COLUMNS)?;
        }
        let drawn = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut out = io::stderr().lock();
        out.write_all(drawn.as_bytes())?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_buffered_until_flush() {
        let target = BufferedStderr::default();
        target.clear_line().and_then(|()| target.move_cursor_up(2)).and_then(|()| target.write_line("101 start")).expect("drawn");
        target.move_cursor_left(0).expect("nothing");
        assert_eq!(*target.0.lock().expect("nobody panicked"), "\r\u{1b}[2K\u{1b}[2A101 start\n");
    }
}
