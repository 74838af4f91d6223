//! The bytes of answers: heads, lengths, packing, and what is refused before it is read.

use std::io::Read as _;

use converger_lab::Act;
use converger_lab::server::Clock;
use tokio::time::Instant;

use crate::lab::{Lab, TOKEN, WORLD, get, paused};

#[test]
fn a_head_is_proxmox_s_to_the_byte() {
    paused(async {
        let lab = Lab::of(WORLD, Clock::Virtual { step_ms: 0 });
        let heard = lab.call().await.ask(&get("/version")).await;
        let date = "Sun, 15 Nov 2026 00:00:00 GMT";
        let length = heard.body.len().to_string();
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
        assert_eq!(heard.headers, wanted.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(heard.text().starts_with("{\"data\":{"), "{}", heard.text());
    });
}

#[test]
fn an_answer_without_a_body_has_no_length_and_ends_with_the_connection() {
    paused(async {
        let lab = Lab::new();
        lab.server.world().lock().act(0, Act::ServiceDown("a".to_owned(), converger_lab::Part::Daemon));
        for (request, line, took_ms) in [
            (get("/version").replace(TOKEN, ""), "HTTP/1.1 401 No ticket", 3_000),
            (get("/nodes/a/qemu"), "HTTP/1.1 595 Connection refused", 0),
            (get("/version").replace("GET", "HEAD"), "HTTP/1.1 501 method 'HEAD' not available", 0),
        ] {
            let mut caller = lab.call().await;
            let began = Instant::now();
            let heard = caller.ask(&request).await;
            assert_eq!((heard.line.as_str(), heard.text().as_str()), (line, ""));
            assert!(heard.all("Content-Length").is_empty() && heard.all("Content-Type").is_empty(), "{heard:?}");
            assert_eq!(began.elapsed().as_millis(), took_ms, "{line}");
        }
    });
}

#[test]
fn what_is_asked_without_tls_is_sent_elsewhere_and_never_reaches_the_world() {
    paused(async {
        let lab = Lab::new();
        for (method, line, text) in [
            ("GET", "HTTP/1.1 301 Moved Permanently", "Moved Permanently"),
            ("POST", "HTTP/1.1 308 Permanent Redirect", "Permanent Redirect"),
        ] {
            let mut caller = lab.plain();
            let heard =
                caller.ask(&format!("{method} /api2/json/version?a=b HTTP/1.1\r\nHost: x:8006\r\n{TOKEN}Content-Length: 0\r\n\r\n")).await;
            assert_eq!((heard.line.as_str(), heard.text().as_str()), (line, text));
            assert_eq!(heard.all("Location"), ["https://x:8006/api2/json/version?a=b"]);
            assert_eq!(heard.all("Connection"), ["Keep-Alive"], "it says so");
            assert_eq!(caller.ends_after_ms().await, 0, "and does not do so");
        }
        assert_eq!(lab.requests(), 0);
    });
}

#[test]
fn what_is_no_http_1_is_refused_with_and_without_tls() {
    paused(async {
        let lab = Lab::new();
        for (said, line) in [
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.0 506 http protocol version 2.0 not supported"),
            ("hello\r\n\r\n", "HTTP/1.0 400 bad request"),
            ("GET /api2/json/version HTTP/1.1\r\nno header\r\n\r\n", "HTTP/1.1 506 unable to parse request header"),
        ] {
            let (mut secret, mut plain) = (lab.call().await, lab.plain());
            let heard = secret.ask(said).await;
            assert_eq!(heard.line, line);
            assert_eq!(heard.all("Connection"), ["close"]);
            assert_eq!(line.split_once(' ').and_then(|(_, rest)| rest.split_once(' ')).map(|(_, text)| text), Some(heard.text().as_str()));
            assert_eq!(secret.ends_after_ms().await, 0);
            assert_eq!(plain.ask(said).await.line, line);
        }
        assert_eq!(lab.requests(), 0);
    });
}

#[test]
fn a_body_is_refused_by_its_head_alone() {
    paused(async {
        let lab = Lab::new();
        let path = "/api2/json/nodes/a/qemu/100/config";
        for (method, header, line) in [
            ("PUT", "Content-Length: 524289", "HTTP/1.1 501 for data too large"),
            ("PUT", "Content-Length: 99999999999999999999999", "HTTP/1.1 501 for data too large"),
            ("PUT", "Transfer-Encoding: chunked", "HTTP/1.1 501 chunked transfer encoding not supported"),
            ("PUT", "Transfer-Encoding: zip", "HTTP/1.1 501 Unknown transfer encoding 'zip'"),
            ("GET", "Content-Length: 1", "HTTP/1.1 501 Unexpected content for method 'GET'"),
            ("DELETE", "Content-Length: 1", "HTTP/1.1 501 Unexpected content for method 'DELETE'"),
        ] {
            let mut caller = lab.call().await;
            let heard = caller.ask(&format!("{method} {path} HTTP/1.1\r\n{TOKEN}{header}\r\n\r\n")).await;
            assert_eq!(heard.line, line, "nothing of the body was sent");
        }
        let heard = lab.call().await.ask(&format!("PUT {path} HTTP/1.1\r\nContent-Length: 524289\r\n\r\n")).await;
        assert_eq!(heard.line, "HTTP/1.1 401 No ticket", "who it is comes first");
    });
}

#[test]
fn the_largest_body_is_taken_and_a_larger_one_does_not_drown_its_answer() {
    paused(async {
        let lab = Lab::new();
        let form = |bytes: usize| format!("description={}", "x".repeat(bytes - "description=".len()));
        let heard = lab.call().await.ask(&crate::lab::put("/nodes/a/qemu/100/config", &form(512 * 1024))).await;
        assert_eq!(heard.line, "HTTP/1.1 400 Parameter verification failed.", "it was read: {}", heard.text());
        let mut caller = lab.call().await;
        caller.say(&crate::lab::put("/nodes/a/qemu/100/config", &form(700 * 1024))).await;
        assert_eq!(caller.hear().await.map(|heard| heard.line).as_deref(), Some("HTTP/1.1 501 for data too large"));
    });
}

#[test]
fn large_answers_are_packed_for_those_who_say_so() {
    paused(async {
        let lab = Lab::new();
        let ask = async |path: &str, header: &str| lab.call().await.ask(&get(path).replace("Host: x\r\n", header)).await;
        let plain = ask("/access/roles", "").await;
        assert!(plain.body.len() > 1024 && plain.all("Content-Encoding").is_empty());
        let packed = ask("/access/roles", "Accept-Encoding: deflate, gzip;q=1\r\n").await;
        assert_eq!(packed.all("Content-Encoding"), ["gzip"]);
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(packed.body.as_slice()).read_to_end(&mut unpacked).expect("gzip");
        assert_eq!((unpacked == plain.body, packed.body.len() < plain.body.len()), (true, true));
        assert!(ask("/version", "Accept-Encoding: gzip\r\n").await.all("Content-Encoding").is_empty(), "too small");
    });
}

#[test]
fn nobody_is_told_to_go_on() {
    paused(async {
        let lab = Lab::new();
        let request = crate::lab::put("/nodes/a/qemu/100/config", "onboot=0").replace("Host: x", "Expect: 100-continue");
        let heard = lab.call().await.ask(&request).await;
        assert_eq!((heard.line.as_str(), heard.text().as_str()), ("HTTP/1.1 200 OK", "{\"data\":null}"));
    });
}
