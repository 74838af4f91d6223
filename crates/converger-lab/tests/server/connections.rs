//! When connections stay open, when they close, and what responses say about that.

use converger_lab::server::ClockMode;
use tokio::io::AsyncWriteExt;

use crate::lab::{ReceivedResponse, StreamLab, TOKEN, TestClient, WORLD, get_request, put_request, run_paused};

/// Checks the `Connection` headers of a response, and after how long the connection closes.
async fn check_connection(lab: &StreamLab, request: &str, expected: &[&str], closed_ms: u128) -> ReceivedResponse {
    let mut caller = lab.connect().await;
    let response = caller.request(request).await;
    assert_eq!(response.header_values("Connection"), expected, "{request}");
    assert_eq!(caller.closed_after_ms().await, closed_ms, "{request}");
    response
}

#[test]
fn connections_stay_open_for_five_seconds() {
    run_paused(async {
        let lab = StreamLab::new();
        check_connection(&lab, &get_request("/version"), &["Keep-Alive"], 5_000).await;
        check_connection(&lab, &put_request("/nodes/a/qemu/100/config", "onboot=0"), &["close", "Keep-Alive"], 5_000).await;
        check_connection(&lab, &get_request("/nodes/b/qemu/101/status/current"), &["close,Keep-Alive", "Keep-Alive"], 5_000).await;
    });
}

#[test]
fn errors_close_the_connection() {
    run_paused(async {
        let lab = StreamLab::new();
        let response = check_connection(&lab, &get_request("/nosuch"), &["close"], 0).await;
        assert_eq!(response.line, "HTTP/1.1 501 Method 'GET /nosuch' not implemented");
        check_connection(&lab, &get_request("/nodes/a/qemu/999/config"), &["close"], 0).await;
        check_connection(&lab, &put_request("/nodes/b/qemu/101/config", "cores=x"), &["close"], 0).await;
    });
}

#[test]
fn clients_can_ask_to_close_the_connection() {
    run_paused(async {
        let lab = StreamLab::new();
        let with = |version: &str, header: &str| format!("GET /api2/json/version HTTP/{version}\r\n{header}{TOKEN}\r\n");
        check_connection(&lab, &with("1.1", "Connection: close\r\n"), &["close"], 0).await;
        check_connection(&lab, &with("1.1", "connection: TE, Close\r\n"), &["close"], 0).await;
        let old = check_connection(&lab, &with("1.0", ""), &["close"], 0).await;
        assert_eq!(old.line, "HTTP/1.0 200 OK");
        let old = check_connection(&lab, &with("1.0", "Connection: keep-alive\r\n"), &["Keep-Alive"], 5_000).await;
        assert_eq!(old.line, "HTTP/1.0 200 OK");
        let newer = check_connection(&lab, &with("1.7", ""), &["Keep-Alive"], 5_000).await;
        assert_eq!(newer.line, "HTTP/1.7 200 OK");
    });
}

#[test]
fn the_hundredth_response_closes_the_connection() {
    run_paused(async {
        let lab = StreamLab::new();
        let mut caller = lab.connect().await;
        for number in 1..=100 {
            let response = caller.request(&get_request("/version")).await;
            let expected = if number == 100 { "close" } else { "Keep-Alive" };
            assert_eq!(response.header_values("Connection"), [expected], "request {number}");
        }
        assert_eq!(caller.closed_after_ms().await, 0);
        assert_eq!(lab.requests(), 100);
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    run_paused(async {
        let lab = StreamLab::new();
        let mut caller = lab.connect().await;
        caller
            .send(
                &[
                    get_request("/version"),
                    put_request("/nodes/a/qemu/100/config", "onboot=1"),
                    get_request("/nosuch"),
                    get_request("/version"),
                ]
                .concat(),
            )
            .await;
        let mut lines = Vec::new();
        while let Some(response) = caller.read_response().await {
            lines.push(response.line);
        }
        assert_eq!(lines, ["HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/1.1 501 Method 'GET /nosuch' not implemented"]);
        assert_eq!(lab.requests(), 3, "requests after the closing response are not read");
    });
}

#[test]
fn requests_may_arrive_during_a_slow_response() {
    run_paused(async {
        let lab = StreamLab::new();
        let mut caller = lab.connect().await;
        let login = "GET /api2/json/version HTTP/1.1\r\nHost: x\r\n\r\n";
        caller.send(login).await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        caller.send(&get_request("/version")).await;
        let response = caller.read_response().await.expect("an answer");
        assert_eq!((response.line.as_str(), response.header_values("Content-Length")), ("HTTP/1.1 401 No ticket", vec![]));
        assert_eq!(lab.requests(), 1, "an error closes the connection");
    });
}

#[test]
fn half_closed_connections_still_get_their_response() {
    run_paused(async {
        let lab = StreamLab::new();
        for (request, line) in
            [(get_request("/version"), "HTTP/1.1 200 OK"), (get_request("/version").replace(TOKEN, ""), "HTTP/1.1 401 No ticket")]
        {
            let mut caller = lab.connect().await;
            caller.send(&request).await;
            caller.stream.shutdown().await.expect("half closed");
            assert_eq!(caller.read_response().await.map(|response| response.line).as_deref(), Some(line));
            assert_eq!(caller.closed_after_ms().await, 0);
        }
    });
}

#[test]
fn virtual_clocks_never_delay_responses() {
    run_paused(async {
        let lab = StreamLab::from_yaml(WORLD, ClockMode::Virtual { step_ms: 1_000 });
        let began = tokio::time::Instant::now();
        let date = async |request: &str| {
            let mut caller: TestClient<_> = lab.connect().await;
            caller.request(request).await.header_values("Date").concat()
        };
        assert_eq!(date(&get_request("/version")).await, "Sun, 15 Nov 2026 00:00:01 GMT");
        assert_eq!(
            date("GET /api2/json/version HTTP/1.1\r\n\r\n").await,
            "Sun, 15 Nov 2026 00:00:05 GMT",
            "one second per request, three for a 401"
        );
        assert_eq!(date(&get_request("/version")).await, "Sun, 15 Nov 2026 00:00:06 GMT");
        assert_eq!(began.elapsed().as_millis(), 0);
    });
}
