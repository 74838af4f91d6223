//! Faults on the wire, as scripts write them.

use std::io::Read as _;

use converger_lab::server::Clock;
use converger_lab::{Setting, Twist};
use tokio::time::Instant;

use crate::lab::{Caller, Heard, Lab, WORLD, get, paused, put};

/// What a script comes to: a world in which this happens to every request.
fn scripted(twist: &str) -> Lab {
    Lab::of(&format!("{WORLD}faults: {{ requests: [{{ twist: {twist} }}] }}\n"), Clock::Real { speed: 1 })
}

async fn asked(lab: &Lab, request: &str) -> Option<Heard> {
    let mut caller = lab.call().await;
    caller.say(request).await;
    caller.hear().await
}

/// What the requests of these tests change.
fn starts_at_boot(lab: &Lab) -> bool {
    lab.server.world().lock().truth(100).is_some_and(|guest| guest.config.contains_key("onboot"))
}

#[test]
fn what_is_lost_ends_without_a_word_with_or_without_its_effect() {
    paused(async {
        for (twist, happened) in [("lost-before", false), ("lost-after", true)] {
            let lab = scripted(twist);
            assert_eq!(asked(&lab, &put("/nodes/a/qemu/100/config", "onboot=1")).await, None);
            assert_eq!(starts_at_boot(&lab), happened, "{twist}");
        }
    });
}

#[test]
fn a_truncated_answer_announces_more_than_there_is() {
    paused(async {
        let heard = asked(&scripted("{ truncated: 5 }"), &get("/version")).await.expect("a head");
        assert_eq!(heard.text(), "{\"dat");
        assert!(heard.all("Content-Length")[0].parse::<usize>().expect("a number") > 5);
    });
}

#[test]
fn a_drip_takes_its_time_and_is_whole() {
    paused(async {
        let lab = scripted("{ drip: { bytes: 10, every_ms: 700 } }");
        let mut caller = lab.call().await;
        caller.say(&get("/version")).await;
        let began = Instant::now();
        let heard = caller.hear().await.expect("an answer");
        assert!(heard.text().ends_with('}') && heard.text().starts_with("{\"data\""), "{}", heard.text());
        let bytes = heard.body.len()
            + heard.line.len()
            + 2
            + heard.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>()
            + 2;
        assert_eq!(began.elapsed().as_millis(), 700 * (bytes as u128).div_ceil(10).saturating_sub(1));
        assert_eq!(caller.ask(&get("/version")).await.line, "HTTP/1.1 200 OK", "and the connection stays");
    });
}

#[test]
fn a_drip_lasts_also_where_the_clock_of_the_world_stands() {
    paused(async {
        let yaml = format!("{WORLD}faults: {{ requests: [{{ twist: {{ drip: {{ bytes: 1, every_ms: 1000 }} }} }}] }}\n");
        let lab = Lab::of(&yaml, Clock::Virtual { step_ms: 0 });
        let began = Instant::now();
        assert!(asked(&lab, &get("/version")).await.is_some());
        assert!(began.elapsed().as_secs() > 100, "{:?}", began.elapsed());
    });
}

#[test]
fn a_flood_is_as_long_as_it_says_and_still_json() {
    paused(async {
        let bytes = 8_000_000;
        let heard = asked(&scripted(&format!("{{ flood: {{ bytes: {bytes} }} }}")), &get("/version")).await.expect("an answer");
        assert_eq!((heard.all("Content-Length"), heard.body.len()), (vec!["8000000"], bytes));
        assert!(serde_json::from_slice::<serde_json::Value>(&heard.body).is_ok());
        let silent = scripted(&format!("{{ flood: {{ bytes: {bytes}, unannounced: true }} }}"));
        let heard = asked(&silent, &get("/version")).await.expect("an answer");
        assert_eq!((heard.all("Content-Length"), heard.body.len()), (vec![], bytes), "the connection ends it");
    });
}

#[test]
fn nobody_needs_to_read_a_flood_to_its_end() {
    paused(async {
        let lab = Lab::twisted(Twist::Flood { bytes: u64::MAX, unannounced: false });
        let (here, there) = tokio::io::duplex(1024);
        let served = tokio::spawn(lab.server.over("a", there));
        let stream = lab.tls.connect(crate::lab::server_name("localhost"), here).await.expect("TLS");
        let mut caller = Caller::new(stream);
        caller.say(&get("/version")).await;
        assert_eq!(caller.head().await.expect("a head").all("Content-Length"), ["18446744073709551615"]);
        drop(caller);
        served.await.expect("no panic");
    });
}

#[test]
fn a_gzip_bomb_is_small_and_unpacks_to_a_lot_though_nobody_asked() {
    paused(async {
        let lab = scripted("{ gzip-bomb: 50000000 }");
        let heard = asked(&lab, &get("/version")).await.expect("an answer");
        assert_eq!(heard.all("Content-Encoding"), ["gzip"]);
        assert_eq!(heard.all("Content-Length"), [heard.body.len().to_string()]);
        assert!(heard.body.len() < 100_000, "{}", heard.body.len());
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(heard.body.as_slice()).read_to_end(&mut unpacked).expect("gzip");
        assert_eq!(unpacked.len(), 50_000_000);
    });
}

#[test]
fn a_redirect_says_where_to_and_does_nothing() {
    paused(async {
        let lab = scripted("{ redirect: 'https://elsewhere.invalid/x' }");
        let heard = asked(&lab, &put("/nodes/a/qemu/100/config", "onboot=1")).await.expect("an answer");
        assert_eq!((heard.line.as_str(), heard.all("Location")), ("HTTP/1.1 301 Moved Permanently", vec!["https://elsewhere.invalid/x"]));
        assert!(!starts_at_boot(&lab));
    });
}

#[test]
fn something_else_can_answer_in_its_place() {
    paused(async {
        let lab = scripted("{ instead: { status: 502, reason: Bad Gateway, body: '<html>', html: true } }");
        let heard = asked(&lab, &get("/version")).await.expect("an answer");
        assert_eq!((heard.line.as_str(), heard.text().as_str()), ("HTTP/1.1 502 Bad Gateway", "<html>"));
        assert_eq!(heard.all("Content-Type"), ["text/html;charset=UTF-8"]);
    });
}

#[test]
fn a_proxy_that_hangs_takes_the_request_and_says_nothing_for_a_minute() {
    paused(async {
        let moments = "faults: { moments: [{ at_ms: 0, act: { service-hung: [a, proxy] } }] }\n";
        let lab = Lab::of(&format!("{WORLD}{moments}"), Clock::Real { speed: 1 });
        let mut caller = lab.call().await;
        caller.say(&put("/nodes/a/qemu/100/config", "onboot=1")).await;
        assert_eq!(caller.ends_after_ms().await, 60_000);
        assert!(!starts_at_boot(&lab));
    });
}

#[test]
fn scripts_are_strict_about_faults_on_the_wire() {
    for wrong in [
        "{ drip: { bytes: 1 } }",
        "{ drip: { bytes: -1, every_ms: 1 } }",
        "{ flood: { bytes: 1, slowly: true } }",
        "{ gzip-bomb: large }",
        "{ redirect: }",
        "trickle",
    ] {
        let yaml = format!("{WORLD}faults: {{ requests: [{{ twist: {wrong} }}] }}\n");
        assert!(Setting::from_yaml(&yaml).is_err(), "{wrong}");
    }
}
