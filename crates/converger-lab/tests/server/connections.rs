//! When a connection stays, when it ends, and what it says about that.

use converger_lab::server::Clock;
use tokio::io::AsyncWriteExt;

use crate::lab::{Caller, Heard, Lab, TOKEN, WORLD, get, paused, put};

/// What an answer says about the connection, and after how long it is closed then.
async fn check(lab: &Lab, request: &str, said: &[&str], closed_ms: u128) -> Heard {
    let mut caller = lab.call().await;
    let heard = caller.ask(request).await;
    assert_eq!(heard.all("Connection"), said, "{request}");
    assert_eq!(caller.ends_after_ms().await, closed_ms, "{request}");
    heard
}

#[test]
fn an_answer_keeps_the_connection_for_five_seconds() {
    paused(async {
        let lab = Lab::new();
        check(&lab, &get("/version"), &["Keep-Alive"], 5_000).await;
        check(&lab, &put("/nodes/a/qemu/100/config", "onboot=0"), &["close", "Keep-Alive"], 5_000).await;
        check(&lab, &get("/nodes/b/qemu/101/status/current"), &["close,Keep-Alive", "Keep-Alive"], 5_000).await;
    });
}

#[test]
fn an_error_ends_the_connection() {
    paused(async {
        let lab = Lab::new();
        let heard = check(&lab, &get("/nosuch"), &["close"], 0).await;
        assert_eq!(heard.line, "HTTP/1.1 501 Method 'GET /nosuch' not implemented");
        check(&lab, &get("/nodes/a/qemu/999/config"), &["close"], 0).await;
        check(&lab, &put("/nodes/b/qemu/101/config", "cores=x"), &["close"], 0).await;
    });
}

#[test]
fn the_caller_can_ask_for_the_end() {
    paused(async {
        let lab = Lab::new();
        let with = |version: &str, header: &str| format!("GET /api2/json/version HTTP/{version}\r\n{header}{TOKEN}\r\n");
        check(&lab, &with("1.1", "Connection: close\r\n"), &["close"], 0).await;
        check(&lab, &with("1.1", "connection: TE, Close\r\n"), &["close"], 0).await;
        let old = check(&lab, &with("1.0", ""), &["close"], 0).await;
        assert_eq!(old.line, "HTTP/1.0 200 OK");
        let old = check(&lab, &with("1.0", "Connection: keep-alive\r\n"), &["Keep-Alive"], 5_000).await;
        assert_eq!(old.line, "HTTP/1.0 200 OK");
        let newer = check(&lab, &with("1.7", ""), &["Keep-Alive"], 5_000).await;
        assert_eq!(newer.line, "HTTP/1.7 200 OK");
    });
}

#[test]
fn the_hundredth_answer_is_the_last() {
    paused(async {
        let lab = Lab::new();
        let mut caller = lab.call().await;
        for number in 1..=100 {
            let heard = caller.ask(&get("/version")).await;
            let said = if number == 100 { "close" } else { "Keep-Alive" };
            assert_eq!(heard.all("Connection"), [said], "request {number}");
        }
        assert_eq!(caller.ends_after_ms().await, 0);
        assert_eq!(lab.requests(), 100);
    });
}

#[test]
fn requests_in_one_go_are_answered_one_by_one() {
    paused(async {
        let lab = Lab::new();
        let mut caller = lab.call().await;
        caller.say(&[get("/version"), put("/nodes/a/qemu/100/config", "onboot=1"), get("/nosuch"), get("/version")].concat()).await;
        let mut lines = Vec::new();
        while let Some(heard) = caller.hear().await {
            lines.push(heard.line);
        }
        assert_eq!(lines, ["HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/1.1 501 Method 'GET /nosuch' not implemented"]);
        assert_eq!(lab.requests(), 3, "what comes after the end is not read");
    });
}

#[test]
fn a_request_may_come_while_another_is_answered_slowly() {
    paused(async {
        let lab = Lab::new();
        let mut caller = lab.call().await;
        let login = "GET /api2/json/version HTTP/1.1\r\nHost: x\r\n\r\n";
        caller.say(login).await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        caller.say(&get("/version")).await;
        let heard = caller.hear().await.expect("an answer");
        assert_eq!((heard.line.as_str(), heard.all("Content-Length")), ("HTTP/1.1 401 No ticket", vec![]));
        assert_eq!(lab.requests(), 1, "an error ends the connection");
    });
}

#[test]
fn who_closes_one_direction_still_gets_its_answer() {
    paused(async {
        let lab = Lab::new();
        for (request, line) in [(get("/version"), "HTTP/1.1 200 OK"), (get("/version").replace(TOKEN, ""), "HTTP/1.1 401 No ticket")] {
            let mut caller = lab.call().await;
            caller.say(&request).await;
            caller.stream.shutdown().await.expect("half closed");
            assert_eq!(caller.hear().await.map(|heard| heard.line).as_deref(), Some(line));
            assert_eq!(caller.ends_after_ms().await, 0);
        }
    });
}

#[test]
fn a_clock_that_only_requests_move_lets_nobody_wait() {
    paused(async {
        let lab = Lab::of(WORLD, Clock::Virtual { step_ms: 1_000 });
        let began = tokio::time::Instant::now();
        let date = async |request: &str| {
            let mut caller: Caller<_> = lab.call().await;
            caller.ask(request).await.all("Date").concat()
        };
        assert_eq!(date(&get("/version")).await, "Sun, 15 Nov 2026 00:00:01 GMT");
        assert_eq!(date("GET /api2/json/version HTTP/1.1\r\n\r\n").await, "Sun, 15 Nov 2026 00:00:05 GMT", "one for it, three for a 401");
        assert_eq!(date(&get("/version")).await, "Sun, 15 Nov 2026 00:00:06 GMT");
        assert_eq!(began.elapsed().as_millis(), 0);
    });
}
