//! Hostile and broken clients: none of them blocks the lab, and each is dropped within a known
//! time.

use std::time::Duration;

use converger_lab::ResponseFault;
use converger_lab::server::ClockMode;
use tokio::io::{AsyncWriteExt, duplex};
use tokio::time::{Instant, sleep};

use crate::lab::{PIPE_BYTES, StreamLab, TOKEN, TestClient, WORLD, get_request, put_request, run_paused};

/// Sends bytes without TLS; returns after how many milliseconds the server closes the connection.
async fn plain_closed_after_ms(lab: &StreamLab, bytes: &[u8]) -> u128 {
    let mut caller = lab.connect_plain();
    // The server may close the connection before everything is sent.
    let _ = caller.try_send(bytes).await;
    caller.closed_after_ms().await
}

#[test]
fn silent_connections_close_after_five_seconds() {
    run_paused(async {
        let lab = StreamLab::new();
        assert_eq!(plain_closed_after_ms(&lab, b"").await, 5_000);
        assert_eq!(plain_closed_after_ms(&lab, b"\x16").await, 5_000, "a client that only starts a TLS record");
        assert_eq!(
            plain_closed_after_ms(&lab, b"\x16\x03\x01\x40\x00aaaa").await,
            5_000,
            "a client that announces a TLS record and does not send it"
        );
        assert_eq!(plain_closed_after_ms(&lab, b"GET / HTTP/1.1\r\n").await, 5_000);
        assert_eq!(plain_closed_after_ms(&lab, &[0x80; 100]).await, 5_000);
        let mut caller = lab.connect().await;
        assert_eq!(caller.closed_after_ms().await, 5_000, "with TLS too");
    });
}

#[test]
fn invalid_tls_closes_the_connection_immediately() {
    run_paused(async {
        let lab = StreamLab::new();
        let mut caller = lab.connect_plain();
        let began = Instant::now();
        let _ = caller.try_send(&[b"\x16\x03\x01\x00\x10".as_slice(), &[0xff; 64]].concat()).await;
        while caller.read_more().await {}
        assert_eq!(began.elapsed().as_millis(), 0);
    });
}

#[test]
fn oversized_heads_get_no_response() {
    run_paused(async {
        let lab = StreamLab::new();
        let lines = |count: usize| format!("GET /api2/json/version HTTP/1.1\r\n{TOKEN}{}\r\n", "X: y\r\n".repeat(count));
        let long = |bytes: usize| format!("GET /api2/json/version HTTP/1.1\r\n{TOKEN}X: {}\r\n\r\n", "y".repeat(bytes));
        for (request, is_too_much) in [(lines(61), false), (lines(62), true), (long(8_000), false), (long(8_192), true)] {
            let mut caller = lab.connect().await;
            caller.send(&request).await;
            let began = Instant::now();
            assert_eq!(caller.read_response().await.is_none(), is_too_much, "{} bytes", request.len());
            assert_eq!(began.elapsed().as_millis(), if is_too_much { 5_000 } else { 0 });
        }
        assert_eq!(lab.requests(), 2);
    });
}

#[test]
fn endless_lines_close_the_connection() {
    run_paused(async {
        let lab = StreamLab::new();
        let long = |bytes: usize| format!("GET /{} HTTP/1.1\r\n{TOKEN}\r\n", "a".repeat(bytes));
        let response = lab.connect().await.request(&long(60_000)).await;
        assert!(response.line.starts_with("HTTP/1.1 500 no such file '/aaa"), "{}", response.line);
        let mut caller = lab.connect().await;
        let _ = caller.try_send(long(200_000).as_bytes()).await;
        assert_eq!(caller.closed_after_ms().await, 0);
        assert_eq!(lab.requests(), 1);
    });
}

#[test]
fn slow_senders_are_closed_after_a_minute() {
    run_paused(async {
        let lab = StreamLab::new();
        let mut caller = lab.connect_plain();
        let began = Instant::now();
        let mut sent_bytes = 0;
        while sent_bytes < 1_000 && caller.try_send(b"a").await.is_ok() {
            sleep(Duration::from_secs(4)).await;
            sent_bytes += 1;
        }
        assert!((60..=68).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
        let mut caller = lab.connect().await;
        caller.send(&format!("PUT /api2/json/nodes/a/qemu/100/config HTTP/1.1\r\n{TOKEN}Content-Length: 10000\r\n\r\n")).await;
        let began = Instant::now();
        for _ in 0..14 {
            sleep(Duration::from_secs(4)).await;
            caller.send("a").await;
        }
        assert_eq!(caller.closed_after_ms().await, 4_000, "{:?} in total, including a body", began.elapsed());
        assert_eq!(lab.requests(), 0);
    });
}

#[test]
fn missing_bodies_close_the_connection() {
    run_paused(async {
        let lab = StreamLab::new();
        let whole = put_request("/nodes/a/qemu/100/config", "onboot=1");
        let mut caller = lab.connect().await;
        caller.send(whole.strip_suffix("=1").expect("a form")).await;
        assert_eq!(caller.closed_after_ms().await, 5_000);
        assert_eq!(lab.requests(), 0, "and no request is executed");
    });
}

#[test]
fn clients_that_do_not_read_are_closed_after_five_seconds() {
    run_paused(async {
        let lab = StreamLab::with_fault(ResponseFault::Flood { bytes: 600_000_000, unannounced: false });
        let (client_stream, server_stream) = duplex(PIPE_BYTES);
        let served = tokio::spawn(lab.server.serve_stream("a", server_stream));
        let stream = lab.tls.connect(crate::lab::server_name("localhost"), client_stream).await.expect("TLS");
        let mut caller = TestClient::new(stream);
        caller.send(&get_request("/version")).await;
        let began = Instant::now();
        served.await.expect("no panic");
        assert!((5_000..=7_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
        drop(caller);
    });
}

#[test]
fn disconnected_clients_are_dropped_during_a_slow_response() {
    run_paused(async {
        let lab = StreamLab::with_fault(ResponseFault::Slow(3_600_000));
        let (client_stream, server_stream) = duplex(PIPE_BYTES);
        let served = tokio::spawn(lab.server.serve_stream("a", server_stream));
        let stream = lab.tls.connect(crate::lab::server_name("localhost"), client_stream).await.expect("TLS");
        let mut caller = TestClient::new(stream);
        caller.send(&get_request("/version")).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(lab.requests(), 1);
        drop(caller);
        let began = Instant::now();
        served.await.expect("no panic");
        assert_eq!(began.elapsed().as_secs(), 30);
    });
}

#[test]
fn waiting_clients_get_a_response_after_an_hour() {
    run_paused(async {
        let lab = StreamLab::with_fault(ResponseFault::Slow(3_600_000));
        let began = Instant::now();
        assert_eq!(lab.connect().await.request(&get_request("/version")).await.line, "HTTP/1.1 200 OK");
        assert_eq!(began.elapsed().as_secs(), 3_600);
    });
}

#[test]
fn request_floods_without_reading_are_bounded() {
    run_paused(async {
        let lab = StreamLab::from_yaml(WORLD, ClockMode::Virtual { step_ms: 1 });
        let mut caller = lab.connect().await;
        let many = get_request("/version").repeat(5_000);
        let sent = tokio::time::timeout(Duration::from_secs(60), caller.try_send(many.as_bytes())).await;
        assert!(matches!(sent, Ok(Err(_))), "the server stops reading, then closes the connection: {sent:?}");
        assert!(lab.requests() <= 100, "{}", lab.requests());
        let _ = caller.stream.shutdown().await;
    });
}

#[test]
fn random_bytes_never_break_the_server() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    run_paused(async move {
        let lab = StreamLab::new();
        for round in 0..300 {
            let bytes: Vec<u8> = (0..(round % 97) * 7).map(|_| byte()).collect();
            let (mut plain, mut secret) = (lab.connect_plain(), lab.connect().await);
            let _ = (plain.try_send(&bytes).await, secret.try_send(&bytes).await);
            let _ = (plain.read_response().await, secret.read_response().await);
        }
        assert_eq!(lab.connect().await.request(&get_request("/version")).await.line, "HTTP/1.1 200 OK", "the server still responds");
    });
}
