//! An observation has limits of its own, so that a server that stays just below the limits of each response cannot keep a client busy
//! forever.

use std::time::Duration;

use converger_adapters::proxmox::client::{ProxmoxSession, ProxmoxTransport, RequestLimits};
use converger_adapters::proxmox::codec::{Delivery, FailureCause, HttpRequest, HttpResponse, ProxmoxFailure};
use converger_adapters::proxmox::observe::{self, ObservationRequest, ProxmoxReading, ReadSet, ReadingError};
use converger_core::failure::FailureCode;
use converger_core::guest::EnvironmentName;

use crate::scripted_proxmox::{STANDALONE_NODE, ScriptedProxmox, scope_of, stopped_guest};

/// A scripted Proxmox whose responses take `delay` on the test clock, are padded with blanks, or exceed the limit of a single response.
#[derive(Clone)]
struct SlowScriptedProxmox {
    proxmox: ScriptedProxmox,
    delay: Duration,
    bytes: usize,
    too_large: bool,
}

impl ProxmoxTransport for SlowScriptedProxmox {
    async fn exchange(&self, request: &HttpRequest) -> Result<HttpResponse, ProxmoxFailure> {
        tokio::time::advance(self.delay).await;
        let mut answer = self.proxmox.respond(request.method().word(), request.path());
        answer.body.resize(answer.body.len().max(self.bytes), b' ');
        if self.too_large && request.path().contains("/qemu/") {
            return Err(ProxmoxFailure::without_response(Delivery::NotDelivered, FailureCause::TooLarge, "desk: too large"));
        }
        Ok(answer)
    }

    fn endpoint_name(&self) -> &str {
        "desk"
    }
}

const GUESTS: u32 = 2_000;

fn large_proxmox() -> SlowScriptedProxmox {
    let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, (100..100 + GUESTS).map(|vmid| (vmid, stopped_guest(vmid, "n1"))));
    SlowScriptedProxmox { proxmox, delay: Duration::ZERO, bytes: 0, too_large: false }
}

fn take_reading(burden: &SlowScriptedProxmox, bounds: RequestLimits) -> Result<ProxmoxReading, ReadingError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let environment = EnvironmentName::new("lab").expect("a name");
    let scope = scope_of(&burden.proxmox.guests.keys().map(|vmid| u64::from(*vmid)).collect::<Vec<_>>());
    let question =
        ObservationRequest { environment: &environment, cluster: None, token: "svc@pve!probe", scope: &scope, needs: &ReadSet::Everything };
    runtime.block_on(async { observe::take_reading(&ProxmoxSession::for_reading(burden.clone(), bounds), &question).await })
}

#[track_caller]
fn check_refused(
    burden: &SlowScriptedProxmox,
    bounds: RequestLimits,
    code: FailureCode,
    message: &str,
    requests: std::ops::RangeInclusive<usize>,
) {
    let unread = take_reading(burden, bounds).expect_err("no partial observation");
    assert_eq!((unread.code(), unread.to_string().as_str()), (code, message));
    assert!(unread.remedy().contains("declare its guests in several files"), "{}", unread.remedy());
    let request_count = burden.proxmox.requests().len();
    assert!(requests.contains(&request_count), "{request_count} requests");
}

#[test]
fn gives_up_an_observation_that_takes_too_long() {
    let slow = SlowScriptedProxmox { delay: Duration::from_secs(59), ..large_proxmox() };
    // 15 minutes and one more response; all responses would have taken two and a half days.
    let message = "desk: the whole environment cannot be read: the observation took longer than 900 s";
    check_refused(&slow, RequestLimits::default(), FailureCode::ReadingTooSlow, message, 16..=17);
}

#[test]
fn gives_up_an_observation_that_grows_too_large() {
    let large = SlowScriptedProxmox { bytes: 1 << 20, ..large_proxmox() };
    let bounds = RequestLimits { reading_bytes_max: 8 << 20, ..RequestLimits::default() };
    let message = "desk: the whole environment cannot be read: the responses of one observation exceed 8 MiB in total";
    check_refused(&large, bounds, FailureCode::ReadingTooLarge, message, 9..=10);
}

#[test]
fn oversized_responses_count_against_the_budget() {
    let message = "desk: the whole environment cannot be read: the responses of one observation exceed 512 MiB in total";
    check_refused(
        &SlowScriptedProxmox { too_large: true, ..large_proxmox() },
        RequestLimits::default(),
        FailureCode::ReadingTooLarge,
        message,
        10..=12,
    );
}

#[test]
fn reads_thousands_of_guests_within_the_budget() {
    let usual = SlowScriptedProxmox { delay: Duration::from_millis(100), bytes: 8 << 10, ..large_proxmox() };
    let reading = take_reading(&usual, RequestLimits::default()).expect("a reading");
    assert_eq!(reading.observation.guests.len(), GUESTS as usize);
    assert!(reading.observation.quorate && reading.notes.is_empty());
}

#[test]
fn budget_exceeded_at_the_last_request_fails_the_observation() {
    let mut late = large_proxmox();
    late.proxmox.guests.retain(|vmid, _| *vmid == 100);
    late.delay = Duration::from_secs(10);
    let bounds = |secs| RequestLimits { reading: Duration::from_secs(secs), ..RequestLimits::default() };
    // Six responses, of which the last one repeats the state of the cluster.
    for (secs, is_read) in [(49, false), (50, true)] {
        assert_eq!(take_reading(&late, bounds(secs)).is_ok(), is_read, "{secs} s");
    }
}
