//! Bytes on the wire, replayed against a server of the current world.
//!
//! Comparing bodies is in `compare`.

use converger_lab::World;
use converger_lab::server::{ClockMode, LabServer};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::compare::{compare_body, matches_text};
use crate::fixture::{ExpectedBody, ExpectedWire};
use crate::lab::{ReceivedResponse, StreamLab, TestClient, run_paused, server_options, test_certificates, trusting_connector};

/// Sends all bytes, compares all responses and measures when the connection closes. Effects on the world are kept.
pub(crate) fn play_wire(world: &mut World, wire: &ExpectedWire) -> Result<(), String> {
    let mut outcome = Ok(());
    run_paused(async {
        let identity = test_certificates();
        let tls = trusting_connector(&identity);
        let server = LabServer::from_world(world.clone(), server_options(ClockMode::Virtual { step_ms: 0 }, identity)).expect("a server");
        let lab = StreamLab { server, tls, node: "pve1" };
        outcome =
            if wire.is_plain { exchange_bytes(lab.connect_plain(), wire).await } else { exchange_bytes(lab.connect().await, wire).await };
        *world = lab.server.world().lock().clone();
    });
    outcome
}

async fn exchange_bytes<S: AsyncRead + AsyncWrite + Unpin>(mut caller: TestClient<S>, wire: &ExpectedWire) -> Result<(), String> {
    caller.send(&wire.sent).await;
    for (lines, body) in &wire.answers {
        let response = caller.read_response().await.ok_or("the connection closed before the response")?;
        compare_response(lines, body, &response)?;
    }
    let closed_ms = caller.closed_after_ms().await;
    if closed_ms == wire.closed_ms { Ok(()) } else { Err(format!("closed after {closed_ms} ms, expected after {}", wire.closed_ms)) }
}

fn compare_response(lines: &[String], body: &ExpectedBody, response: &ReceivedResponse) -> Result<(), String> {
    let headers = response.headers.iter().map(|(name, value)| format!("{name}: {value}"));
    let found: Vec<String> = std::iter::once(response.line.clone()).chain(headers).collect();
    let agree = lines.len() == found.len() && lines.iter().zip(&found).all(|(wanted, found)| matches_text(wanted, found));
    if !agree {
        return Err(format!("expected {lines:?}, got {found:?}"));
    }
    compare_body(body, &response.body)
}
