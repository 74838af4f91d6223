//! Callers who mean harm, or are broken: none of them holds the lab up, and each is got rid of in a known time.

use std::time::Duration;

use converger_lab::Twist;
use converger_lab::server::Clock;
use tokio::io::{AsyncWriteExt, duplex};
use tokio::time::{Instant, sleep};

use crate::lab::{Caller, Lab, PIPE_BYTES, TOKEN, WORLD, get, paused, put};

/// Bytes without TLS, and after how many milliseconds the server hangs up.
async fn hangs_up_after_ms(lab: &Lab, bytes: &[u8]) -> u128 {
    let mut caller = lab.plain();
    // The server may be gone before everything is said.
    let _ = caller.try_say(bytes).await;
    caller.ends_after_ms().await
}

#[test]
fn who_says_nothing_is_left_after_five_seconds() {
    paused(async {
        let lab = Lab::new();
        assert_eq!(hangs_up_after_ms(&lab, b"").await, 5_000);
        assert_eq!(hangs_up_after_ms(&lab, b"\x16").await, 5_000, "and who only begins TLS");
        assert_eq!(hangs_up_after_ms(&lab, b"\x16\x03\x01\x40\x00aaaa").await, 5_000, "and who announces a record and does not send it");
        assert_eq!(hangs_up_after_ms(&lab, b"GET / HTTP/1.1\r\n").await, 5_000);
        assert_eq!(hangs_up_after_ms(&lab, &[0x80; 100]).await, 5_000);
        let mut caller = lab.call().await;
        assert_eq!(caller.ends_after_ms().await, 5_000, "with TLS too");
    });
}

#[test]
fn what_only_looks_like_tls_is_hung_up_on_at_once() {
    paused(async {
        let lab = Lab::new();
        let mut caller = lab.plain();
        let began = Instant::now();
        let _ = caller.try_say(&[b"\x16\x03\x01\x00\x10".as_slice(), &[0xff; 64]].concat()).await;
        while caller.more().await {}
        assert_eq!(began.elapsed().as_millis(), 0);
    });
}

#[test]
fn a_head_that_is_too_much_is_met_with_silence() {
    paused(async {
        let lab = Lab::new();
        let lines = |count: usize| format!("GET /api2/json/version HTTP/1.1\r\n{TOKEN}{}\r\n", "X: y\r\n".repeat(count));
        let long = |bytes: usize| format!("GET /api2/json/version HTTP/1.1\r\n{TOKEN}X: {}\r\n\r\n", "y".repeat(bytes));
        for (request, is_too_much) in [(lines(61), false), (lines(62), true), (long(8_000), false), (long(8_192), true)] {
            let mut caller = lab.call().await;
            caller.say(&request).await;
            let began = Instant::now();
            assert_eq!(caller.hear().await.is_none(), is_too_much, "{} bytes", request.len());
            assert_eq!(began.elapsed().as_millis(), if is_too_much { 5_000 } else { 0 });
        }
        assert_eq!(lab.requests(), 2);
    });
}

#[test]
fn a_line_without_end_is_not_kept() {
    paused(async {
        let lab = Lab::new();
        let long = |bytes: usize| format!("GET /{} HTTP/1.1\r\n{TOKEN}\r\n", "a".repeat(bytes));
        let heard = lab.call().await.ask(&long(60_000)).await;
        assert!(heard.line.starts_with("HTTP/1.1 500 no such file '/aaa"), "{}", heard.line);
        let mut caller = lab.call().await;
        let _ = caller.try_say(long(200_000).as_bytes()).await;
        assert_eq!(caller.ends_after_ms().await, 0);
        assert_eq!(lab.requests(), 1);
    });
}

#[test]
fn a_byte_now_and_then_holds_a_connection_for_a_minute_at_most() {
    paused(async {
        let lab = Lab::new();
        let mut caller = lab.plain();
        let began = Instant::now();
        let mut said = 0;
        while said < 1_000 && caller.try_say(b"a").await.is_ok() {
            sleep(Duration::from_secs(4)).await;
            said += 1;
        }
        assert!((60..=68).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
        let mut caller = lab.call().await;
        caller.say(&format!("PUT /api2/json/nodes/a/qemu/100/config HTTP/1.1\r\n{TOKEN}Content-Length: 10000\r\n\r\n")).await;
        let began = Instant::now();
        for _ in 0..14 {
            sleep(Duration::from_secs(4)).await;
            caller.say("a").await;
        }
        assert_eq!(caller.ends_after_ms().await, 4_000, "{:?} in all, a body included", began.elapsed());
        assert_eq!(lab.requests(), 0);
    });
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    paused(async {
        let lab = Lab::new();
        let whole = put("/nodes/a/qemu/100/config", "onboot=1");
        let mut caller = lab.call().await;
        caller.say(whole.strip_suffix("=1").expect("a form")).await;
        assert_eq!(caller.ends_after_ms().await, 5_000);
        assert_eq!(lab.requests(), 0, "and nothing is carried out");
    });
}

#[test]
fn who_does_not_read_is_left_after_five_seconds() {
    paused(async {
        let lab = Lab::twisted(Twist::Flood { bytes: 600_000_000, unannounced: false });
        let (here, there) = duplex(PIPE_BYTES);
        let served = tokio::spawn(lab.server.over("a", there));
        let stream = lab.tls.connect(crate::lab::server_name("localhost"), here).await.expect("TLS");
        let mut caller = Caller::new(stream);
        caller.say(&get("/version")).await;
        let began = Instant::now();
        served.await.expect("no panic");
        assert!((5_000..=7_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
        drop(caller);
    });
}

#[test]
fn who_goes_away_while_the_answer_takes_an_hour_is_forgotten() {
    paused(async {
        let lab = Lab::twisted(Twist::Slow(3_600_000));
        let (here, there) = duplex(PIPE_BYTES);
        let served = tokio::spawn(lab.server.over("a", there));
        let stream = lab.tls.connect(crate::lab::server_name("localhost"), here).await.expect("TLS");
        let mut caller = Caller::new(stream);
        caller.say(&get("/version")).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(lab.requests(), 1);
        drop(caller);
        let began = Instant::now();
        served.await.expect("no panic");
        assert_eq!(began.elapsed().as_secs(), 30);
    });
}

#[test]
fn who_stays_gets_an_answer_after_an_hour() {
    paused(async {
        let lab = Lab::twisted(Twist::Slow(3_600_000));
        let began = Instant::now();
        assert_eq!(lab.call().await.ask(&get("/version")).await.line, "HTTP/1.1 200 OK");
        assert_eq!(began.elapsed().as_secs(), 3_600);
    });
}

#[test]
fn a_flood_of_requests_without_reading_is_bounded() {
    paused(async {
        let lab = Lab::of(WORLD, Clock::Virtual { step_ms: 1 });
        let mut caller = lab.call().await;
        let many = get("/version").repeat(5_000);
        let said = tokio::time::timeout(Duration::from_secs(60), caller.try_say(many.as_bytes())).await;
        assert!(matches!(said, Ok(Err(_))), "the server stops reading, and then leaves: {said:?}");
        assert!(lab.requests() <= 100, "{}", lab.requests());
        let _ = caller.stream.shutdown().await;
    });
}

#[test]
fn random_bytes_never_hurt() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    paused(async move {
        let lab = Lab::new();
        for round in 0..300 {
            let bytes: Vec<u8> = (0..(round % 97) * 7).map(|_| byte()).collect();
            let (mut plain, mut secret) = (lab.plain(), lab.call().await);
            let _ = (plain.try_say(&bytes).await, secret.try_say(&bytes).await);
            let _ = (plain.hear().await, secret.hear().await);
        }
        assert_eq!(lab.call().await.ask(&get("/version")).await.line, "HTTP/1.1 200 OK", "it is still there");
    });
}
