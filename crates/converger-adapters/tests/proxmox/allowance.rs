//! A reading has bounds of its own: a server that stays just below those of each answer does not keep anybody for ever.

use std::time::Duration;

use converger_adapters::proxmox::client::{Bounds, Exchange, Session};
use converger_adapters::proxmox::codec::{Cause, Delivery, Failure, HttpAnswer, HttpRequest};
use converger_adapters::proxmox::observe::{self, Needs, Question, Taken, Unread};
use converger_core::failure::Code;
use converger_core::guest::EnvironmentName;

use crate::desk::{ALONE, Desk, guest, scope};

/// A desk each of whose answers takes so long on the clock of the test, is filled up with blanks, or is too large by itself.
#[derive(Clone)]
struct Burden {
    desk: Desk,
    takes: Duration,
    bytes: usize,
    too_large: bool,
}

impl Exchange for Burden {
    async fn exchange(&self, request: &HttpRequest) -> Result<HttpAnswer, Failure> {
        tokio::time::advance(self.takes).await;
        let mut answer = self.desk.answer(request.method().word(), request.path());
        answer.body.resize(answer.body.len().max(self.bytes), b' ');
        if self.too_large && request.path().contains("/qemu/") {
            return Err(Failure::lost(Delivery::NotDelivered, Cause::TooLarge, "desk: too large"));
        }
        Ok(answer)
    }

    fn place(&self) -> &str {
        "desk"
    }
}

const GUESTS: u32 = 2_000;

fn burden() -> Burden {
    let desk = Desk::with(ALONE, (100..100 + GUESTS).map(|vmid| (vmid, guest(vmid, "n1"))));
    Burden { desk, takes: Duration::ZERO, bytes: 0, too_large: false }
}

fn read(burden: &Burden, bounds: Bounds) -> Result<Taken, Unread> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let environment = EnvironmentName::new("lab").expect("a name");
    let scope = scope(&burden.desk.guests.keys().map(|vmid| u64::from(*vmid)).collect::<Vec<_>>());
    let question = Question { environment: &environment, cluster: None, token: "svc@pve!probe", scope: &scope, needs: &Needs::Everything };
    runtime.block_on(async { observe::read(&Session::for_reading(burden.clone(), bounds), &question).await })
}

#[track_caller]
fn check_refused(burden: &Burden, bounds: Bounds, code: Code, said: &str, requests: std::ops::RangeInclusive<usize>) {
    let unread = read(burden, bounds).expect_err("no half of a reading");
    assert_eq!((unread.code(), unread.to_string().as_str()), (code, said));
    assert!(unread.remedy().contains("declare its guests in several files"), "{}", unread.remedy());
    let asked = burden.desk.requests().len();
    assert!(requests.contains(&asked), "{asked} requests");
}

#[test]
fn a_server_that_takes_its_time_for_each_of_thousands_of_answers_is_left() {
    let slow = Burden { takes: Duration::from_secs(59), ..burden() };
    // A quarter of an hour and one answer more, where all would have taken two days and a half.
    let said = "desk: the whole environment cannot be read: one reading took longer than 900 s";
    check_refused(&slow, Bounds::default(), Code::ReadingTooSlow, said, 16..=17);
}

#[test]
fn a_server_that_fills_up_each_of_thousands_of_answers_is_left() {
    let large = Burden { bytes: 1 << 20, ..burden() };
    let bounds = Bounds { reading_bytes_max: 8 << 20, ..Bounds::default() };
    let said = "desk: the whole environment cannot be read: the answers of one reading are together larger than 8 MiB";
    check_refused(&large, bounds, Code::ReadingTooLarge, said, 9..=10);
}

#[test]
fn answers_that_are_cut_off_because_they_are_too_large_count_as_well() {
    let said = "desk: the whole environment cannot be read: the answers of one reading are together larger than 512 MiB";
    check_refused(&Burden { too_large: true, ..burden() }, Bounds::default(), Code::ReadingTooLarge, said, 10..=12);
}

#[test]
fn thousands_of_guests_are_within_the_bounds() {
    let usual = Burden { takes: Duration::from_millis(100), bytes: 8 << 10, ..burden() };
    let taken = read(&usual, Bounds::default()).expect("a reading");
    assert_eq!(taken.observation.guests.len(), GUESTS as usize);
    assert!(taken.observation.quorate && taken.notes.is_empty());
}

#[test]
fn what_is_refused_at_the_very_end_is_refused_as_well() {
    let mut late = burden();
    late.desk.guests.retain(|vmid, _| *vmid == 100);
    late.takes = Duration::from_secs(10);
    let bounds = |secs| Bounds { reading: Duration::from_secs(secs), ..Bounds::default() };
    // Six answers, of which the last says once more what the state of the cluster is.
    for (secs, is_read) in [(49, false), (50, true)] {
        assert_eq!(read(&late, bounds(secs)).is_ok(), is_read, "{secs} s");
    }
}
