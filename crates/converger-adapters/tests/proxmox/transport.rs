//! What the wire does, and what the client makes of it: each bad day ends as a failure that says what became of the request, and
//! as a sentence that says what to do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use converger_adapters::proxmox::client::{Bounds, Client, Endpoint, Exchange, Fingerprint, Trust};
use converger_adapters::proxmox::codec::{Cause, Command, Delivery, Event, Failure, GuestPath, Read, Write, decode, encode};
use converger_adapters::proxmox::doctor::Level;
use converger_adapters::proxmox::{Environment, Proxmox, ProxmoxError};
use converger_core::failure::Code;
use converger_core::guest::{EnvironmentName, Kind, NodeName, Vmid};

use crate::desk::{ALONE, Desk, cluster_of, guest, raw, scope, success};
use crate::server::{Reply, Server, bounds, start, token};

fn version() -> Command {
    Command::Read(Read::Version)
}

fn stop() -> Command {
    let guest = GuestPath { node: NodeName::new("n1").expect("a name"), kind: Kind::Qemu, vmid: Vmid::new(100).expect("an id") };
    Command::Write(Write::Stop(guest))
}

fn run(client: &Client, command: &Command) -> Result<Event, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let answer = runtime.block_on(client.exchange(&encode(command)))?;
    decode(command, &answer)
}

fn check(server: &Server, command: &Command, cause: Cause, delivery: Delivery, part: &str) {
    let failure = run(&server.client(server.pinned()), command).expect_err("a failure");
    assert_eq!((failure.cause, failure.delivery), (cause, delivery), "{failure}");
    assert!(failure.to_string().contains(part), "{failure}");
}

/// The same for a command that reads and one that writes: only the latter leaves something behind.
fn check_both(reply: &Reply, cause: Cause, part: &str) {
    let reply = reply.clone();
    let server = start(move |_| reply.clone());
    check(&server, &version(), cause, Delivery::NotDelivered, part);
    check(&server, &stop(), cause, Delivery::MayHaveRun, part);
}

#[test]
fn a_request_carries_the_token_and_a_form_and_asks_for_no_compression() {
    let server = start(|_| Reply::Answer(success("null")));
    run(&server.client(server.pinned()), &stop()).expect("accepted");
    let seen = server.requests();
    assert_eq!((seen[0].method.as_str(), seen[0].path.as_str()), ("POST", "/api2/extjs/nodes/n1/qemu/100/status/stop"));
    assert_eq!(seen[0].headers["authorization"], format!("PVEAPIToken=svc@pve!probe={}", crate::server::SECRET));
    assert_eq!(seen[0].headers["content-type"], "application/x-www-form-urlencoded");
    assert_eq!((seen[0].headers["content-length"].as_str(), seen[0].body.as_str()), ("0", ""));
    assert!(!seen[0].headers.contains_key("accept-encoding") && !seen[0].headers.contains_key("transfer-encoding"));
}

#[test]
fn a_no_that_ends_without_a_word_of_tls_is_a_no_and_a_list_is_not_a_list() {
    let no = |head: &str| {
        let bytes = head.as_bytes().to_vec();
        start(move |_| Reply::Cut(bytes.clone()))
    };
    let server = no("HTTP/1.1 401 Authentication failed!\r\nConnection: close\r\n\r\n");
    check(&server, &version(), Cause::Unauthenticated, Delivery::NotDelivered, "Authentication failed");
    let server = no("HTTP/1.1 596 Connection timed out\r\nConnection: close\r\n\r\n");
    check(&server, &stop(), Cause::Interrupted, Delivery::MayHaveRun, "Connection timed out");
    let server = no("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"data\":[]}");
    check(&server, &version(), Cause::Interrupted, Delivery::NotDelivered, "connection broke");
    let server = no("HTTP/1.1 401 Authentication failed!\r\nContent-Length: 9\r\n\r\n");
    check(&server, &version(), Cause::Interrupted, Delivery::NotDelivered, "connection broke");
}

#[test]
fn two_connection_headers_are_borne() {
    let server = start(|_| Reply::Answer(success(r#"{"version":"8.4.1"}"#)));
    let Event::Version(version) = run(&server.client(server.pinned()), &version()).expect("an answer") else { panic!("a version") };
    assert_eq!(version.major, 8);
}

#[test]
fn the_reason_phrase_is_all_that_some_answers_have() {
    let server = start(|_| Reply::Raw(b"HTTP/1.1 595 No route to host\r\nConnection: close\r\n\r\n".to_vec()));
    check(&server, &stop(), Cause::NodeUnreachable, Delivery::NotDelivered, "No route to host");
    let server = start(|_| Reply::Raw(b"HTTP/1.1 596 Connection timed out\r\nConnection: close\r\n\r\n".to_vec()));
    check(&server, &stop(), Cause::Interrupted, Delivery::MayHaveRun, "Connection timed out");
    let server = start(|_| Reply::Raw(b"HTTP/1.1 401 Authentication failed!\r\nConnection: close\r\n\r\n".to_vec()));
    check(&server, &stop(), Cause::Unauthenticated, Delivery::NotDelivered, "Authentication failed!");
}

#[test]
fn a_redirect_is_not_followed() {
    let server =
        start(|_| Reply::Raw(b"HTTP/1.1 301 Moved Permanently\r\nLocation: https://127.0.0.1/\r\nContent-Length: 0\r\n\r\n".to_vec()));
    check(&server, &stop(), Cause::Redirected, Delivery::NotDelivered, "Moved Permanently");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn what_is_no_answer_of_proxmox_is_malformed() {
    check_both(&Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n<html>...".to_vec()), Cause::Interrupted, "connection broke");
    check_both(&Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>".to_vec()), Cause::Malformed, "a web page");
    check_both(&Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"data\":".to_vec()), Cause::Malformed, "cut off");
    let zipped = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08".to_vec();
    check_both(&Reply::Raw(zipped), Cause::Compressed, "compressed");
    check_both(&Reply::Raw(b"hello\r\n\r\n".to_vec()), Cause::Interrupted, "connection broke");
}

#[test]
fn a_body_is_bounded_whether_or_not_it_says_how_long_it_is() {
    check_both(&Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 629145600\r\n\r\n".to_vec()), Cause::TooLarge, "larger than 1 MiB");
    check_both(&Reply::Flood(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec()), Cause::TooLarge, "larger than 1 MiB");
}

#[test]
fn a_connection_that_ends_without_an_answer_leaves_a_write_open() {
    check_both(&Reply::Close, Cause::Interrupted, "connection broke");
}

#[test]
fn time_is_bounded_however_slowly_an_answer_drips() {
    for reply in [Reply::Hang, Reply::Drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n".to_vec())] {
        let server = start(move |_| reply.clone());
        let endpoint = Endpoint::new(&server.url(), server.pinned()).expect("an address");
        let client = Client::new(endpoint, &token(), Bounds { deadline: Duration::from_millis(300), ..bounds() }).expect("a client");
        let failure = run(&client, &stop()).expect_err("a failure");
        assert_eq!((failure.cause, failure.delivery), (Cause::TooSlow, Delivery::MayHaveRun), "{failure}");
    }
}

/// A record with a tag that fits nothing, a fatal alert in the clear, and what is no record at all.
fn breakages() -> [Vec<u8>; 3] {
    [[&[23, 3, 3, 0, 64][..], &[0x5a; 64]].concat(), vec![21, 3, 3, 0, 2, 2, 80], b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()]
}

#[test]
fn g13_a_connection_that_breaks_below_the_answer_leaves_a_write_open() {
    for bytes in breakages() {
        check_both(&Reply::Garbled(bytes), Cause::Interrupted, "connection broke");
    }
}

/// Whoever answers the first bytes of a handshake with what `answer` makes of them, and then hangs up.
fn breaks_within_the_handshake(answer: impl FnOnce(&[u8]) -> Vec<u8> + Send + 'static) -> (String, std::thread::JoinHandle<()>) {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut hello = vec![0; 1 << 16];
        let length = stream.read(&mut hello).expect("read");
        stream.write_all(&answer(&hello[..length])).expect("written");
    });
    (url, thread)
}

/// The first bytes of what a real server answers to a hello.
fn half_of_a_handshake(server: std::net::SocketAddr, hello: &[u8]) -> Vec<u8> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(server).expect("a connection");
    stream.write_all(hello).expect("written");
    let mut half = vec![0; 200];
    stream.read_exact(&mut half).expect("the first flight is longer than that");
    half
}

#[test]
fn a_connection_that_breaks_within_the_handshake_carried_nothing() {
    let server = start(|_| Reply::Answer(success("null")));
    let address = server.address;
    type Answer = Box<dyn FnOnce(&[u8]) -> Vec<u8> + Send>;
    let mut answers: Vec<Answer> = vec![Box::new(|_| Vec::new()), Box::new(move |hello| half_of_a_handshake(address, hello))];
    answers.push(Box::new(move |hello| [half_of_a_handshake(address, hello), b"hello?".repeat(900)].concat()));
    answers.extend(breakages().map(|bytes| Box::new(move |_: &[u8]| bytes) as Answer));
    for answer in answers {
        let (url, thread) = breaks_within_the_handshake(answer);
        let client = Client::new(Endpoint::new(&url, server.pinned()).expect("an address"), &token(), bounds()).expect("a client");
        let failure = run(&client, &stop()).expect_err("a failure");
        assert_eq!(failure.delivery, Delivery::NotDelivered, "{failure}");
        assert!(matches!(failure.cause, Cause::NotTls | Cause::Unreachable), "{failure:?}");
        thread.join().expect("ended");
    }
    assert!(server.requests().is_empty());
}

#[test]
fn a_connection_that_never_stood_is_not_an_answer_that_is_late() {
    // The system takes the connection, and nobody speaks: as behind a firewall, or where the process of the server hangs.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", mute.local_addr().expect("an address"));
    let pins = Trust::Fingerprints(Box::new([Fingerprint::of(b"x")]));
    for (connect_ms, deadline_ms) in [(300, 300), (20_000, 300), (100, 20_000)] {
        let [connect, deadline] = [connect_ms, deadline_ms].map(Duration::from_millis);
        let endpoint = Endpoint::new(&url, pins.clone()).expect("an address");
        let client = Client::new(endpoint, &token(), Bounds { connect, deadline, ..bounds() }).expect("a client");
        let failure = run(&client, &stop()).expect_err("a failure");
        assert_eq!((failure.cause, failure.delivery), (Cause::Unreachable, Delivery::NotDelivered), "{failure}");
        assert!(failure.cause.is_no_connection(), "the next endpoint is asked");
    }
}

/// A hold that comes while a connection is made would not be seen any more: everything was asked before.
#[test]
fn g12_a_change_for_which_a_connection_stands_late_is_not_sent_then_or_later() {
    let server = start(|_| Reply::Answer(success("null")));
    let (passes, passed) = std::sync::mpsc::channel();
    let gate = slow_gate(server.address, passed);
    let endpoint = Endpoint::new(&gate, server.pinned()).expect("an address");
    let short = Bounds { connect_to_change: Duration::from_millis(150), ..bounds() };
    let client = Client::new(endpoint, &token(), short).expect("a client");
    let failure = run(&client, &stop()).expect_err("nobody lets it through in time");
    assert_eq!((failure.cause, failure.delivery), (Cause::Busy, Delivery::NotDelivered), "{failure}");
    assert!(failure.to_string().contains("the change was not sent"), "{failure}");
    // Now both are let through: the one that was given up, and one for a reading.
    passes.send(()).and_then(|()| passes.send(())).expect("the gate is there");
    let read = run(&client, &version());
    assert!(read.is_err_and(|failure| failure.cause == Cause::Malformed), "it was answered, with no version");
    assert_eq!(server.requests().iter().map(|seen| seen.method.clone()).collect::<Vec<_>>(), ["GET"]);
}

/// A way to a server that lets nobody through before it is told to, one connection each time.
fn slow_gate(server: std::net::SocketAddr, passes: std::sync::mpsc::Receiver<()>) -> String {
    use std::net::{TcpListener, TcpStream};
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for own in listener.incoming().map_while(Result::ok) {
            if passes.recv().is_err() {
                return;
            }
            let there = TcpStream::connect(server).expect("a connection");
            for (mut from, mut to) in [(&own, &there), (&there, &own)]
                .map(|(from, to)| (from.try_clone(), to.try_clone()))
                .map(|(from, to)| (from.expect("a stream"), to.expect("a stream")))
            {
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    url
}

/// An address at which nobody listens: the port was given back.
fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    format!("https://{}", listener.local_addr().expect("an address"))
}

#[test]
fn where_nobody_listens_nothing_is_delivered() {
    let endpoint = Endpoint::new(&nobody(), Trust::Fingerprints(Box::new([start(|_| Reply::Close).fingerprint]))).expect("an address");
    let client = Client::new(endpoint, &token(), bounds()).expect("a client");
    let failure = run(&client, &stop()).expect_err("a failure");
    assert_eq!((failure.cause, failure.delivery), (Cause::Unreachable, Delivery::NotDelivered));
    assert!(failure.to_string().contains("no connection"), "{failure}");
}

/// Proxmox closes an idle connection after 5 s, and whatever is just being sent on it is lost.
#[test]
fn an_idle_connection_is_used_again_and_given_up_before_proxmox_does() {
    let desk = Desk::with(ALONE, []);
    let server = start(move |seen| Reply::Kept(desk.answer(&seen.method, &seen.path)));
    let connections = || server.connections.load(std::sync::atomic::Ordering::SeqCst);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        // While something blocks, the paused clock moves only where it is told to, and waits for the other side of the wire.
        let (release, held) = std::sync::mpsc::channel::<()>();
        let holder = tokio::task::spawn_blocking(move || held.recv().is_err());
        let client = server.client(server.pinned());
        let ask_after = async |wait: Duration| {
            tokio::time::advance(wait).await;
            client.exchange(&encode(&version())).await.expect("an answer");
            // The connection goes back to where it is taken from when its own task has had its turn.
            for _ in 0..32 {
                tokio::task::yield_now().await;
            }
            connections()
        };
        assert_eq!(ask_after(Duration::ZERO).await, 1);
        assert_eq!(ask_after(Duration::from_secs(2)).await, 1, "it is used again");
        assert_eq!(ask_after(Duration::from_millis(4_500)).await, 2, "it was idle for too long, and Proxmox had not closed it yet");
        assert_eq!(ask_after(Duration::from_secs(60)).await, 3);
        drop(release);
        assert!(holder.await.expect("it ends"));
    });
}

fn proxmox(servers: &[(String, Trust)]) -> Proxmox {
    let endpoints = servers.iter().map(|(url, trust)| Endpoint::new(url, trust.clone()).expect("an address")).collect();
    let name = EnvironmentName::new("lab").expect("a name");
    Proxmox::new(Environment { name, cluster: Some("lab".into()), endpoints, token: token(), bounds: bounds() }).expect("an observer")
}

fn desk_server(desk: Desk) -> Server {
    start(move |seen| Reply::Answer(desk.answer(&seen.method, &seen.path)))
}

#[test]
fn one_reading_stays_with_one_endpoint_and_at_two_requests_per_node() {
    let cluster = cluster_of("lab", 1, &[("n1", 1), ("n2", 1)]);
    let desk = Desk::with(&cluster, (100..130).map(|vmid| (vmid, guest(vmid, if vmid % 2 == 0 { "n1" } else { "n2" }))));
    let (first, second) = (desk_server(desk.clone()), desk_server(desk));
    let observer = proxmox(&[(nobody(), first.pinned()), (first.url(), first.pinned()), (second.url(), second.pinned())]);
    let ids: Vec<u64> = (100..130).collect();
    let report = observer.report(&scope(&ids)).expect("a reading");
    assert_eq!(report.reading.guests.len(), 30);
    assert_eq!(
        (report.place.as_str(), report.requests),
        (first.address.to_string().as_str(), 94),
        "three for each guest, three for the cluster, one for the release"
    );
    assert_eq!((first.requests().len(), second.requests().len()), (94, 0));
    assert_eq!(report.passed_over, 1);
    assert_eq!(&*report.reading.notes[0].code, "endpoint-unreachable");
    assert!(report.reading.taken_at.is_some());
    let at_once = first.at_once_max.lock().expect("unpoisoned").clone();
    assert!(at_once.len() == 3 && at_once.values().all(|most| *most <= 2), "{at_once:?}");
}

#[test]
fn an_endpoint_that_answered_once_is_not_exchanged_for_another() {
    let broken = start(|_| Reply::Answer(raw(500, "RPCEnvironment init request failed: Unable to load access control list")));
    let good = desk_server(Desk::with(ALONE, []));
    let observer = proxmox(&[(broken.url(), broken.pinned()), (good.url(), good.pinned())]);
    assert!(matches!(observer.report(&scope(&[])), Err(ProxmoxError::Unread(_))));
    assert_eq!((broken.requests().len(), good.requests().len()), (1, 0), "one attempt");
}

#[test]
fn a_wrong_pin_is_an_alarm_that_stands_in_the_reading_and_nothing_is_sent_there() {
    let desk = || Desk::with(&cluster_of("lab", 1, &[("n1", 1)]), [(100, guest(100, "n1"))]);
    let (other, good) = (desk_server(desk()), desk_server(desk()));
    let observer = proxmox(&[(other.url(), good.pinned()), (good.url(), good.pinned())]);
    let report = observer.report(&scope(&[100])).expect("a reading");
    assert_eq!((report.place.as_str(), report.passed_over), (good.address.to_string().as_str(), 1));
    assert!(other.requests().is_empty(), "the token does not travel to whoever answers there");
    let note = &report.reading.notes[0];
    assert_eq!((&*note.code, note.guest), ("pin-mismatch", None));
    assert!(note.text.contains(&other.address.to_string()) && note.text.contains(&other.fingerprint.to_string()), "{note:?}");
    assert!(note.remedy.contains("pvenode cert info"), "{note:?}");
}

#[test]
fn where_no_endpoint_answers_a_wrong_pin_counts_before_silence() {
    let other = desk_server(Desk::with(ALONE, []));
    let wrong = start(|_| Reply::Close).pinned();
    for ways in [[(nobody(), wrong.clone()), (other.url(), wrong.clone())], [(other.url(), wrong.clone()), (nobody(), wrong.clone())]] {
        let error = proxmox(&ways).report(&scope(&[100])).expect_err("no reading");
        assert_eq!(error.code(), Some(Code::PinMismatch), "{error}");
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("pvenode cert info")), "{error}");
    }
}

#[test]
fn where_no_endpoint_answers_each_is_named_with_its_reason() {
    let (one, two) = (nobody(), nobody());
    let trust = Trust::Fingerprints(Box::new([start(|_| Reply::Close).fingerprint]));
    let observer = proxmox(&[(one.clone(), trust.clone()), (two.clone(), trust)]);
    let error = observer.report(&scope(&[100])).expect_err("no reading").to_string();
    for url in [one, two] {
        assert!(error.contains(url.trim_start_matches("https://")), "{error}");
    }
}

#[test]
fn an_examination_sees_the_wire() {
    let said = std::cell::RefCell::new(Vec::new());
    let server = desk_server(Desk::with(ALONE, []));
    let other = Trust::Fingerprints(Box::new([Fingerprint::of(b"another")]));
    let gone = nobody();
    let observer = proxmox(&[(gone.clone(), server.pinned()), (server.url(), other), (server.url(), server.pinned())]);
    let findings = observer.examine(None, &|what| said.borrow_mut().push(what.to_owned())).findings;
    let at = |url: &str, check: &str| {
        let place = url.trim_start_matches("https://");
        findings.iter().filter(|own| own.about.as_deref() == Some(place) && own.check == check).map(|own| own.level).collect::<Vec<_>>()
    };
    assert_eq!(at(&gone, "endpoint"), [Level::Warn], "another one answers: {findings:#?}");
    assert_eq!(at(&server.url(), "endpoint"), [Level::Fail, Level::Ok]);
    assert_eq!((at(&server.url(), "tls-pin"), at(&server.url(), "tls")), (vec![Level::Fail], vec![Level::Ok]));
    assert_eq!(at(&server.url(), "version"), [Level::Ok]);
    let pin = findings.iter().find(|own| own.check == "tls-pin").and_then(|own| own.remedy.as_ref()).expect("a remedy");
    assert!(pin.lines.iter().any(|line| line.text == format!("fingerprints = [\"{}\"]", server.fingerprint)), "{pin:?}");
    assert!(said.borrow().first().is_some_and(|first| first.contains(gone.trim_start_matches("https://"))));
    assert!(server.requests().iter().all(|request| request.method == "GET"), "an examination changes nothing (G5)");
}

#[test]
fn a_clock_of_long_ago_is_found_in_the_header() {
    let date =
        b"HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nConnection: close\r\n\r\n{\"data\":{\"version\":\"8.4\"}}".to_vec();
    let past = start(move |_| Reply::Raw(date.clone()));
    let findings = proxmox(&[(past.url(), past.pinned())]).examine(None, &|_| {}).findings;
    let clock = findings.iter().find(|own| own.check == "clock").expect("a clock");
    assert!(clock.level == Level::Fail && clock.found.contains("behind ours"), "{clock:?}");
}

#[test]
fn a_secret_that_is_echoed_is_struck_out() {
    let secret = crate::server::SECRET;
    let body =
        format!(r#"{{"success":0,"status":500,"message":"bad header PVEAPIToken=svc@pve!probe={secret}","errors":{{"a":"{secret}"}}}}"#);
    let heads = [
        format!("HTTP/1.1 500 no {secret}\r\nContent-Length: 0\r\n\r\n"),
        format!("HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1/?{secret}\r\nContent-Length: 0\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\nContent-Encoding: {secret}\r\nContent-Length: 0\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()),
    ];
    for head in heads {
        let bytes = head.clone().into_bytes();
        let server = start(move |_| Reply::Raw(bytes.clone()));
        let failure = run(&server.client(server.pinned()), &version()).expect_err("a failure");
        let shown = format!("{failure} {failure:?}");
        assert!(!shown.contains(secret) && shown.contains("(secret)"), "{shown}");
    }
}

#[test]
fn a_secret_that_is_echoed_with_escapes_of_json_is_struck_out_of_keys_and_values() {
    let secret = crate::server::SECRET;
    for escaped in [secret.replace('-', "\\u002d"), secret.chars().map(|own| format!("\\u{:04X}", u32::from(own))).collect()] {
        let said = format!(r#"{{"success":0,"status":400,"message":"{escaped}","errors":{{"{escaped}":"{escaped}"}},"data":null}}"#);
        for status in ["200 OK", "502 Bad Gateway"] {
            let bytes = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{said}", said.len()).into_bytes();
            let server = start(move |_| Reply::Raw(bytes.clone()));
            let failure = run(&server.client(server.pinned()), &version()).expect_err("a failure");
            let shown = format!("{failure} {failure:?}");
            assert!(!shown.contains(secret) && shown.matches("(secret)").count() >= 3, "{shown}");
        }
        let body = format!(r#"{{"data":{{"version":"8.4-{escaped}"}}}}"#);
        let server = start(move |_| Reply::Raw(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()));
        let shown = format!("{:?}", run(&server.client(server.pinned()), &version()));
        assert!(!shown.contains(secret), "{shown}");
    }
}

/// How many requests the server of the test below was sent, which is what its clock goes by.
static ASKED: AtomicU64 = AtomicU64::new(0);

#[test]
fn g1_a_reading_is_as_old_as_its_beginning() {
    let desk = Desk::with(&cluster_of("lab", 1, &[("n1", 1)]), [(100, guest(100, "n1"))]);
    let server = start(move |seen| {
        ASKED.fetch_add(1, Ordering::SeqCst);
        Reply::Answer(desk.answer(&seen.method, &seen.path))
    });
    let clock = || SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + 60 * ASKED.load(Ordering::SeqCst));
    let report = proxmox(&[(server.url(), server.pinned())]).with_clock(clock).report(&scope(&[100])).expect("a reading");
    assert!(report.requests >= 3, "time went by while it was taken");
    assert_eq!(report.reading.taken_at.as_deref(), Some("2027-01-15T08:00:00Z"));
}
