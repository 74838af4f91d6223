//! The bytes of responses: heads, lengths, compression, and what is refused before it is read.

use std::io::Read as _;

use converger_lab::WorldEvent;
use converger_lab::server::ClockMode;
use tokio::time::Instant;

use crate::lab::{StreamLab, TOKEN, WORLD, get_request, run_paused};

#[test]
fn response_heads_equal_those_of_proxmox_byte_by_byte() {
    run_paused(async {
        let lab = StreamLab::from_yaml(WORLD, ClockMode::Virtual { step_ms: 0 });
        let response = lab.connect().await.request(&get_request("/version")).await;
        let date = "Sun, 15 Nov 2026 00:00:00 GMT";
        let length = response.body.len().to_string();
        let wanted = [
            ("Cache-Control", "max-age=0"),
            ("Connection", "Keep-Alive"),
            ("Date", date),
            ("Pragma", "no-cache"),
            ("Server", "pve-api-daemon/3.0"),
            ("Content-Length", length.as_str()),
            ("Content-Type", "application/json;charset=UTF-8"),
            ("Expires", date),
        ];
        assert_eq!(response.headers, wanted.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(response.body_text().starts_with("{\"data\":{"), "{}", response.body_text());
    });
}

#[test]
fn responses_without_a_body_have_no_length_and_close_the_connection() {
    run_paused(async {
        let lab = StreamLab::new();
        lab.server.world().lock().apply_event(0, WorldEvent::ServiceDown("a".to_owned(), converger_lab::NodeService::Daemon));
        for (request, line, took_ms) in [
            (get_request("/version").replace(TOKEN, ""), "HTTP/1.1 401 No ticket", 3_000),
            (get_request("/nodes/a/qemu"), "HTTP/1.1 595 Connection refused", 0),
            (get_request("/version").replace("GET", "HEAD"), "HTTP/1.1 501 method 'HEAD' not available", 0),
        ] {
            let mut caller = lab.connect().await;
            let began = Instant::now();
            let response = caller.request(&request).await;
            assert_eq!((response.line.as_str(), response.body_text().as_str()), (line, ""));
            assert!(
                response.header_values("Content-Length").is_empty() && response.header_values("Content-Type").is_empty(),
                "{response:?}"
            );
            assert_eq!(began.elapsed().as_millis(), took_ms, "{line}");
        }
    });
}

#[test]
fn requests_without_tls_are_redirected_and_never_reach_the_world() {
    run_paused(async {
        let lab = StreamLab::new();
        for (method, line, text) in [
            ("GET", "HTTP/1.1 301 Moved Permanently", "Moved Permanently"),
            ("POST", "HTTP/1.1 308 Permanent Redirect", "Permanent Redirect"),
        ] {
            let mut caller = lab.connect_plain();
            let response = caller
                .request(&format!("{method} /api2/json/version?a=b HTTP/1.1\r\nHost: x:8006\r\n{TOKEN}Content-Length: 0\r\n\r\n"))
                .await;
            assert_eq!((response.line.as_str(), response.body_text().as_str()), (line, text));
            assert_eq!(response.header_values("Location"), ["https://x:8006/api2/json/version?a=b"]);
            assert_eq!(response.header_values("Connection"), ["Keep-Alive"], "the header announces it");
            assert_eq!(caller.closed_after_ms().await, 0, "but the connection closes");
        }
        assert_eq!(lab.requests(), 0);
    });
}

#[test]
fn other_http_versions_are_refused_with_and_without_tls() {
    run_paused(async {
        let lab = StreamLab::new();
        for (request, line) in [
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.0 506 http protocol version 2.0 not supported"),
            ("hello\r\n\r\n", "HTTP/1.0 400 bad request"),
            ("GET /api2/json/version HTTP/1.1\r\nno header\r\n\r\n", "HTTP/1.1 506 unable to parse request header"),
        ] {
            let (mut secret, mut plain) = (lab.connect().await, lab.connect_plain());
            let response = secret.request(request).await;
            assert_eq!(response.line, line);
            assert_eq!(response.header_values("Connection"), ["close"]);
            assert_eq!(
                line.split_once(' ').and_then(|(_, rest)| rest.split_once(' ')).map(|(_, text)| text),
                Some(response.body_text().as_str())
            );
            assert_eq!(secret.closed_after_ms().await, 0);
            assert_eq!(plain.request(request).await.line, line);
        }
        assert_eq!(lab.requests(), 0);
    });
}

#[test]
fn unwanted_bodies_are_refused_after_the_head() {
    run_paused(async {
        let lab = StreamLab::new();
        let path = "/api2/json/nodes/a/qemu/100/config";
        for (method, header, line) in [
            ("PUT", "Content-Length: 524289", "HTTP/1.1 501 for data too large"),
            ("PUT", "Content-Length: 99999999999999999999999", "HTTP/1.1 501 for data too large"),
            ("PUT", "Transfer-Encoding: chunked", "HTTP/1.1 501 chunked transfer encoding not supported"),
            ("PUT", "Transfer-Encoding: zip", "HTTP/1.1 501 Unknown transfer encoding 'zip'"),
            ("GET", "Content-Length: 1", "HTTP/1.1 501 Unexpected content for method 'GET'"),
            ("DELETE", "Content-Length: 1", "HTTP/1.1 501 Unexpected content for method 'DELETE'"),
        ] {
            let mut caller = lab.connect().await;
            let response = caller.request(&format!("{method} {path} HTTP/1.1\r\n{TOKEN}{header}\r\n\r\n")).await;
            assert_eq!(response.line, line, "before any part of the body was sent");
        }
        let response = lab.connect().await.request(&format!("PUT {path} HTTP/1.1\r\nContent-Length: 524289\r\n\r\n")).await;
        assert_eq!(response.line, "HTTP/1.1 401 No ticket", "authentication is checked first");
    });
}

#[test]
fn the_largest_body_is_accepted_and_a_larger_one_still_gets_its_response() {
    run_paused(async {
        let lab = StreamLab::new();
        let form = |bytes: usize| format!("description={}", "x".repeat(bytes - "description=".len()));
        let response = lab.connect().await.request(&crate::lab::put_request("/nodes/a/qemu/100/config", &form(512 * 1024))).await;
        assert_eq!(response.line, "HTTP/1.1 400 Parameter verification failed.", "the body was read: {}", response.body_text());
        let mut caller = lab.connect().await;
        caller.send(&crate::lab::put_request("/nodes/a/qemu/100/config", &form(700 * 1024))).await;
        assert_eq!(caller.read_response().await.map(|response| response.line).as_deref(), Some("HTTP/1.1 501 for data too large"));
    });
}

#[test]
fn large_responses_are_compressed_for_clients_that_accept_gzip() {
    run_paused(async {
        let lab = StreamLab::new();
        let send_request =
            async |path: &str, header: &str| lab.connect().await.request(&get_request(path).replace("Host: x\r\n", header)).await;
        let plain = send_request("/access/roles", "").await;
        assert!(plain.body.len() > 1024 && plain.header_values("Content-Encoding").is_empty());
        let packed = send_request("/access/roles", "Accept-Encoding: deflate, gzip;q=1\r\n").await;
        assert_eq!(packed.header_values("Content-Encoding"), ["gzip"]);
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(packed.body.as_slice()).read_to_end(&mut unpacked).expect("gzip");
        assert_eq!((unpacked == plain.body, packed.body.len() < plain.body.len()), (true, true));
        assert!(send_request("/version", "Accept-Encoding: gzip\r\n").await.header_values("Content-Encoding").is_empty(), "too small");
    });
}

#[test]
fn no_100_continue_is_sent() {
    run_paused(async {
        let lab = StreamLab::new();
        let request = crate::lab::put_request("/nodes/a/qemu/100/config", "onboot=0").replace("Host: x", "Expect: 100-continue");
        let response = lab.connect().await.request(&request).await;
        assert_eq!((response.line.as_str(), response.body_text().as_str()), ("HTTP/1.1 200 OK", "{\"data\":null}"));
    });
}
