//! Faults on requests, as world files contain them.

use std::io::Read as _;

use converger_lab::server::ClockMode;
use converger_lab::{ResponseFault, WorldSpec};
use tokio::time::Instant;

use crate::lab::{ReceivedResponse, StreamLab, TestClient, WORLD, get_request, put_request, run_paused};

/// A lab in which the fault applies to every request.
fn lab_with_fault_script(fault: &str) -> StreamLab {
    StreamLab::from_yaml(&format!("{WORLD}faults: {{ requests: [{{ twist: {fault} }}] }}\n"), ClockMode::Real { speed: 1 })
}

async fn request_once(lab: &StreamLab, request: &str) -> Option<ReceivedResponse> {
    let mut caller = lab.connect().await;
    caller.send(request).await;
    caller.read_response().await
}

/// Whether a PUT of these tests took effect.
fn has_onboot(lab: &StreamLab) -> bool {
    lab.server.world().lock().guest_truth(100).is_some_and(|guest| guest.config.contains_key("onboot"))
}

#[test]
fn lost_requests_and_responses_close_the_connection_silently() {
    run_paused(async {
        for (fault, happened) in [("lost-before", false), ("lost-after", true)] {
            let lab = lab_with_fault_script(fault);
            assert_eq!(request_once(&lab, &put_request("/nodes/a/qemu/100/config", "onboot=1")).await, None);
            assert_eq!(has_onboot(&lab), happened, "{fault}");
        }
    });
}

#[test]
fn truncated_responses_announce_their_full_length() {
    run_paused(async {
        let response = request_once(&lab_with_fault_script("{ truncated: 5 }"), &get_request("/version")).await.expect("a head");
        assert_eq!(response.body_text(), "{\"dat");
        assert!(response.header_values("Content-Length")[0].parse::<usize>().expect("a number") > 5);
    });
}

#[test]
fn dripped_responses_are_slow_and_complete() {
    run_paused(async {
        let lab = lab_with_fault_script("{ drip: { bytes: 10, every_ms: 700 } }");
        let mut caller = lab.connect().await;
        caller.send(&get_request("/version")).await;
        let began = Instant::now();
        let response = caller.read_response().await.expect("an answer");
        assert!(response.body_text().ends_with('}') && response.body_text().starts_with("{\"data\""), "{}", response.body_text());
        let bytes = response.body.len()
            + response.line.len()
            + 2
            + response.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>()
            + 2;
        assert_eq!(began.elapsed().as_millis(), 700 * (bytes as u128).div_ceil(10).saturating_sub(1));
        assert_eq!(caller.request(&get_request("/version")).await.line, "HTTP/1.1 200 OK", "the connection stays open");
    });
}

#[test]
fn dripped_responses_are_slow_even_with_a_virtual_clock() {
    run_paused(async {
        let yaml = format!("{WORLD}faults: {{ requests: [{{ twist: {{ drip: {{ bytes: 1, every_ms: 1000 }} }} }}] }}\n");
        let lab = StreamLab::from_yaml(&yaml, ClockMode::Virtual { step_ms: 0 });
        let began = Instant::now();
        assert!(request_once(&lab, &get_request("/version")).await.is_some());
        assert!(began.elapsed().as_secs() > 100, "{:?}", began.elapsed());
    });
}

#[test]
fn floods_have_their_announced_length_and_are_valid_json() {
    run_paused(async {
        let bytes = 8_000_000;
        let response = request_once(&lab_with_fault_script(&format!("{{ flood: {{ bytes: {bytes} }} }}")), &get_request("/version"))
            .await
            .expect("an answer");
        assert_eq!((response.header_values("Content-Length"), response.body.len()), (vec!["8000000"], bytes));
        assert!(serde_json::from_slice::<serde_json::Value>(&response.body).is_ok());
        let unannounced_lab = lab_with_fault_script(&format!("{{ flood: {{ bytes: {bytes}, unannounced: true }} }}"));
        let response = request_once(&unannounced_lab, &get_request("/version")).await.expect("an answer");
        assert_eq!(
            (response.header_values("Content-Length"), response.body.len()),
            (vec![], bytes),
            "the end of the connection ends the body"
        );
    });
}

#[test]
fn clients_may_abandon_a_flood() {
    run_paused(async {
        let lab = StreamLab::with_fault(ResponseFault::Flood { bytes: u64::MAX, unannounced: false });
        let (client_stream, server_stream) = tokio::io::duplex(1024);
        let served = tokio::spawn(lab.server.serve_stream("a", server_stream));
        let stream = lab.tls.connect(crate::lab::server_name("localhost"), client_stream).await.expect("TLS");
        let mut caller = TestClient::new(stream);
        caller.send(&get_request("/version")).await;
        assert_eq!(caller.read_head().await.expect("a head").header_values("Content-Length"), ["18446744073709551615"]);
        drop(caller);
        served.await.expect("no panic");
    });
}

#[test]
fn gzip_bombs_are_small_and_sent_without_accept_encoding() {
    run_paused(async {
        let lab = lab_with_fault_script("{ gzip-bomb: 50000000 }");
        let response = request_once(&lab, &get_request("/version")).await.expect("an answer");
        assert_eq!(response.header_values("Content-Encoding"), ["gzip"]);
        assert_eq!(response.header_values("Content-Length"), [response.body.len().to_string()]);
        assert!(response.body.len() < 100_000, "{}", response.body.len());
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(response.body.as_slice()).read_to_end(&mut unpacked).expect("gzip");
        assert_eq!(unpacked.len(), 50_000_000);
    });
}

#[test]
fn redirects_name_the_target_and_change_nothing() {
    run_paused(async {
        let lab = lab_with_fault_script("{ redirect: 'https://elsewhere.invalid/x' }");
        let response = request_once(&lab, &put_request("/nodes/a/qemu/100/config", "onboot=1")).await.expect("an answer");
        assert_eq!(
            (response.line.as_str(), response.header_values("Location")),
            ("HTTP/1.1 301 Moved Permanently", vec!["https://elsewhere.invalid/x"])
        );
        assert!(!has_onboot(&lab));
    });
}

#[test]
fn substitute_responses_replace_status_and_body() {
    run_paused(async {
        let lab = lab_with_fault_script("{ instead: { status: 502, reason: Bad Gateway, body: '<html>', html: true } }");
        let response = request_once(&lab, &get_request("/version")).await.expect("an answer");
        assert_eq!((response.line.as_str(), response.body_text().as_str()), ("HTTP/1.1 502 Bad Gateway", "<html>"));
        assert_eq!(response.header_values("Content-Type"), ["text/html;charset=UTF-8"]);
    });
}

#[test]
fn hung_proxies_accept_the_request_and_time_out_after_a_minute() {
    run_paused(async {
        let moments = "faults: { moments: [{ at_ms: 0, act: { service-hung: [a, proxy] } }] }\n";
        let lab = StreamLab::from_yaml(&format!("{WORLD}{moments}"), ClockMode::Real { speed: 1 });
        let mut caller = lab.connect().await;
        caller.send(&put_request("/nodes/a/qemu/100/config", "onboot=1")).await;
        assert_eq!(caller.closed_after_ms().await, 60_000);
        assert!(!has_onboot(&lab));
    });
}

#[test]
fn invalid_wire_faults_are_refused() {
    for wrong in [
        "{ drip: { bytes: 1 } }",
        "{ drip: { bytes: -1, every_ms: 1 } }",
        "{ flood: { bytes: 1, slowly: true } }",
        "{ gzip-bomb: large }",
        "{ redirect: }",
        "trickle",
    ] {
        let yaml = format!("{WORLD}faults: {{ requests: [{{ twist: {wrong} }}] }}\n");
        assert!(WorldSpec::from_yaml(&yaml).is_err(), "{wrong}");
    }
}
