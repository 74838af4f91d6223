//! Faults of the transport: each one ends as a failure with the delivery of the request and a useful message.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use converger_adapters::proxmox::client::{Endpoint, Fingerprint, ProxmoxClient, ProxmoxTransport, RequestLimits, Trust};
use converger_adapters::proxmox::codec::{
    Delivery, FailureCause, GuestPath, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead, ProxmoxWrite, decode, encode,
};
use converger_adapters::proxmox::doctor::FindingLevel;
use converger_adapters::proxmox::observe::ReadSet;
use converger_adapters::proxmox::{ConnectionSettings, ProxmoxError, ProxmoxObserver};
use converger_core::failure::FailureCode;
use converger_core::guest::{EnvironmentName, GuestKind, NodeName, Vmid};

use crate::https_server::{ServerReply, TestHttpsServer, block_on, start_server, test_limits, test_token};
use crate::scripted_proxmox::{
    STANDALONE_NODE, ScriptedProxmox, cluster_rows, raw_response, scope_of, stopped_guest, success_response, take_reading_with_progress,
};

fn version_command() -> ProxmoxCommand {
    ProxmoxCommand::Read(ProxmoxRead::Version)
}

fn stop_command() -> ProxmoxCommand {
    let guest = GuestPath { node: NodeName::new("n1").expect("a name"), kind: GuestKind::Qemu, vmid: Vmid::new(100).expect("an id") };
    ProxmoxCommand::Write(ProxmoxWrite::Stop(guest))
}

fn exchange_command(client: &ProxmoxClient, command: &ProxmoxCommand) -> Result<ProxmoxEvent, ProxmoxFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let answer = runtime.block_on(client.exchange(&encode(command)))?;
    decode(command, &answer)
}

fn check_failure(server: &TestHttpsServer, command: &ProxmoxCommand, cause: FailureCause, delivery: Delivery, part: &str) {
    let failure = exchange_command(&server.client_with(server.pinned_trust()), command).expect_err("a failure");
    assert_eq!((failure.cause, failure.delivery), (cause, delivery), "{failure}");
    assert!(failure.to_string().contains(part), "{failure}");
}

/// Checks a command that reads and one that writes: only the latter may have run.
fn check_read_and_write_failure(reply: &ServerReply, cause: FailureCause, part: &str) {
    let reply = reply.clone();
    let server = start_server(move |_| reply.clone());
    check_failure(&server, &version_command(), cause, Delivery::NotDelivered, part);
    check_failure(&server, &stop_command(), cause, Delivery::MayHaveRun, part);
}

#[test]
fn request_carries_token_and_form_and_refuses_compression() {
    let server = start_server(|_| ServerReply::Answer(success_response("null")));
    exchange_command(&server.client_with(server.pinned_trust()), &stop_command()).expect("accepted");
    let seen = server.requests();
    assert_eq!((seen[0].method.as_str(), seen[0].path.as_str()), ("POST", "/api2/extjs/nodes/n1/qemu/100/status/stop"));
    assert_eq!(seen[0].headers["authorization"], format!("PVEAPIToken=svc@pve!probe={}", crate::https_server::SECRET));
    assert_eq!(seen[0].headers["content-type"], "application/x-www-form-urlencoded");
    assert_eq!((seen[0].headers["content-length"].as_str(), seen[0].body.as_str()), ("0", ""));
    assert!(!seen[0].headers.contains_key("accept-encoding") && !seen[0].headers.contains_key("transfer-encoding"));
}

#[test]
fn truncated_tls_keeps_a_rejection_but_not_a_list() {
    let no = |head: &str| {
        let bytes = head.as_bytes().to_vec();
        start_server(move |_| ServerReply::Cut(bytes.clone()))
    };
    let server = no("HTTP/1.1 401 Authentication failed!\r\nConnection: close\r\n\r\n");
    check_failure(&server, &version_command(), FailureCause::Unauthenticated, Delivery::NotDelivered, "Authentication failed");
    let server = no("HTTP/1.1 596 Connection timed out\r\nConnection: close\r\n\r\n");
    check_failure(&server, &stop_command(), FailureCause::Interrupted, Delivery::MayHaveRun, "Connection timed out");
    let server = no("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"data\":[]}");
    check_failure(&server, &version_command(), FailureCause::Interrupted, Delivery::NotDelivered, "connection broke");
    let server = no("HTTP/1.1 401 Authentication failed!\r\nContent-Length: 9\r\n\r\n");
    check_failure(&server, &version_command(), FailureCause::Interrupted, Delivery::NotDelivered, "connection broke");
}

#[test]
fn tolerates_two_connection_headers() {
    let server = start_server(|_| ServerReply::Answer(success_response(r#"{"version":"8.4.1"}"#)));
    let ProxmoxEvent::Version(version) =
        exchange_command(&server.client_with(server.pinned_trust()), &version_command()).expect("an answer")
    else {
        panic!("a version")
    };
    assert_eq!(version.major, 8);
}

#[test]
fn reads_the_reason_phrase() {
    let server = start_server(|_| ServerReply::Raw(b"HTTP/1.1 595 No route to host\r\nConnection: close\r\n\r\n".to_vec()));
    check_failure(&server, &stop_command(), FailureCause::NodeUnreachable, Delivery::NotDelivered, "No route to host");
    let server = start_server(|_| ServerReply::Raw(b"HTTP/1.1 596 Connection timed out\r\nConnection: close\r\n\r\n".to_vec()));
    check_failure(&server, &stop_command(), FailureCause::Interrupted, Delivery::MayHaveRun, "Connection timed out");
    let server = start_server(|_| ServerReply::Raw(b"HTTP/1.1 401 Authentication failed!\r\nConnection: close\r\n\r\n".to_vec()));
    check_failure(&server, &stop_command(), FailureCause::Unauthenticated, Delivery::NotDelivered, "Authentication failed!");
}

#[test]
fn does_not_follow_redirects() {
    let server = start_server(|_| {
        ServerReply::Raw(b"HTTP/1.1 301 Moved Permanently\r\nLocation: https://127.0.0.1/\r\nContent-Length: 0\r\n\r\n".to_vec())
    });
    check_failure(&server, &stop_command(), FailureCause::Redirected, Delivery::NotDelivered, "Moved Permanently");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn damaged_http_response_is_a_failure() {
    check_read_and_write_failure(
        &ServerReply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n<html>...".to_vec()),
        FailureCause::Interrupted,
        "connection broke",
    );
    check_read_and_write_failure(
        &ServerReply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>".to_vec()),
        FailureCause::Malformed,
        "a web page",
    );
    check_read_and_write_failure(
        &ServerReply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"data\":".to_vec()),
        FailureCause::Malformed,
        "truncated",
    );
    let zipped = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08".to_vec();
    check_read_and_write_failure(&ServerReply::Raw(zipped), FailureCause::Compressed, "compressed");
    check_read_and_write_failure(&ServerReply::Raw(b"hello\r\n\r\n".to_vec()), FailureCause::Interrupted, "connection broke");
}

#[test]
fn bounds_the_body_with_or_without_length() {
    check_read_and_write_failure(
        &ServerReply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 629145600\r\n\r\n".to_vec()),
        FailureCause::TooLarge,
        "larger than 1 MiB",
    );
    check_read_and_write_failure(
        &ServerReply::Flood(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec()),
        FailureCause::TooLarge,
        "larger than 1 MiB",
    );
}

#[test]
fn connection_closed_without_response_leaves_a_write_unclear() {
    check_read_and_write_failure(&ServerReply::Close, FailureCause::Interrupted, "connection broke");
}

#[test]
fn bounds_the_time_of_a_dripping_response() {
    for reply in [ServerReply::Hang, ServerReply::Drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n".to_vec())] {
        let server = start_server(move |_| reply.clone());
        let endpoint = Endpoint::new(&server.url(), server.pinned_trust()).expect("an address");
        let client = ProxmoxClient::new(endpoint, &test_token(), RequestLimits { deadline: Duration::from_millis(300), ..test_limits() })
            .expect("a client");
        let failure = exchange_command(&client, &stop_command()).expect_err("a failure");
        assert_eq!((failure.cause, failure.delivery), (FailureCause::TooSlow, Delivery::MayHaveRun), "{failure}");
    }
}

/// A record with an invalid tag, a fatal alert in plain text, and bytes that are not a record.
fn broken_tls_records() -> [Vec<u8>; 3] {
    [[&[23, 3, 3, 0, 64][..], &[0x5a; 64]].concat(), vec![21, 3, 3, 0, 2, 2, 80], b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()]
}

#[test]
fn g13_broken_tls_during_the_response_leaves_a_write_unclear() {
    for bytes in broken_tls_records() {
        check_read_and_write_failure(&ServerReply::Garbled(bytes), FailureCause::Interrupted, "connection broke");
    }
}

/// A server that replies to the first bytes of a handshake with the result of `answer` and then hangs up.
fn break_handshake(answer: impl FnOnce(&[u8]) -> Vec<u8> + Send + 'static) -> (String, std::thread::JoinHandle<()>) {
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

/// The first bytes of a real server's reply to a hello.
fn partial_handshake(server: std::net::SocketAddr, hello: &[u8]) -> Vec<u8> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(server).expect("a connection");
    stream.write_all(hello).expect("written");
    let mut half = vec![0; 200];
    stream.read_exact(&mut half).expect("the first flight is longer than that");
    half
}

#[test]
fn broken_handshake_delivers_nothing() {
    let server = start_server(|_| ServerReply::Answer(success_response("null")));
    let address = server.address;
    type Answer = Box<dyn FnOnce(&[u8]) -> Vec<u8> + Send>;
    let mut answers: Vec<Answer> = vec![Box::new(|_| Vec::new()), Box::new(move |hello| partial_handshake(address, hello))];
    answers.push(Box::new(move |hello| [partial_handshake(address, hello), b"hello?".repeat(900)].concat()));
    answers.extend(broken_tls_records().map(|bytes| Box::new(move |_: &[u8]| bytes) as Answer));
    for answer in answers {
        let (url, thread) = break_handshake(answer);
        let client = ProxmoxClient::new(Endpoint::new(&url, server.pinned_trust()).expect("an address"), &test_token(), test_limits())
            .expect("a client");
        let failure = exchange_command(&client, &stop_command()).expect_err("a failure");
        assert_eq!(failure.delivery, Delivery::NotDelivered, "{failure}");
        assert!(matches!(failure.cause, FailureCause::NotTls | FailureCause::Unreachable), "{failure:?}");
        thread.join().expect("ended");
    }
    assert!(server.requests().is_empty());
}

#[test]
fn connect_timeout_is_not_a_late_response() {
    // The system accepts the connection, but nothing is sent: as behind a firewall, or with a hung server process.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", mute.local_addr().expect("an address"));
    let pins = Trust::Fingerprints(Box::new([Fingerprint::of_certificate(b"x")]));
    for (connect_ms, deadline_ms) in [(300, 300), (20_000, 300), (100, 20_000)] {
        let [connect, deadline] = [connect_ms, deadline_ms].map(Duration::from_millis);
        let endpoint = Endpoint::new(&url, pins.clone()).expect("an address");
        let client = ProxmoxClient::new(endpoint, &test_token(), RequestLimits { connect, deadline, ..test_limits() }).expect("a client");
        let failure = exchange_command(&client, &stop_command()).expect_err("a failure");
        assert_eq!((failure.cause, failure.delivery), (FailureCause::Unreachable, Delivery::NotDelivered), "{failure}");
        assert!(failure.cause.is_connect_failure(), "the next endpoint is tried");
    }
}

/// A hold that is set during connecting would be missed, because all checks have passed before.
#[test]
fn g12_change_is_never_sent_on_a_late_connection() {
    let server = start_server(|_| ServerReply::Answer(success_response("null")));
    let (passes, passed) = std::sync::mpsc::channel();
    let gate = slow_gate(server.address, passed);
    let endpoint = Endpoint::new(&gate, server.pinned_trust()).expect("an address");
    let short = RequestLimits { connect_to_change: Duration::from_millis(150), ..test_limits() };
    let client = ProxmoxClient::new(endpoint, &test_token(), short).expect("a client");
    let failure = exchange_command(&client, &stop_command()).expect_err("the gate does not open in time");
    assert_eq!((failure.cause, failure.delivery), (FailureCause::Busy, Delivery::NotDelivered), "{failure}");
    assert!(failure.to_string().contains("the change was not sent"), "{failure}");
    // Now let both connections through: the abandoned one and one for a read.
    passes.send(()).and_then(|()| passes.send(())).expect("the gate is running");
    let read = exchange_command(&client, &version_command());
    assert!(read.is_err_and(|failure| failure.cause == FailureCause::Malformed), "it got a response without a version");
    assert_eq!(server.requests().iter().map(|seen| seen.method.clone()).collect::<Vec<_>>(), ["GET"]);
}

/// A proxy that lets connections through one by one, each after a message in `passes`.
fn slow_gate(server: std::net::SocketAddr, passes: std::sync::mpsc::Receiver<()>) -> String {
    use std::net::{TcpListener, TcpStream};
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for own in listener.incoming().map_while(Result::ok) {
            if passes.recv().is_err() {
                return;
            }
            let upstream = TcpStream::connect(server).expect("a connection");
            for (mut from, mut to) in [(&own, &upstream), (&upstream, &own)]
                .map(|(from, to)| (from.try_clone(), to.try_clone()))
                .map(|(from, to)| (from.expect("a stream"), to.expect("a stream")))
            {
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    url
}

/// An address without a listener: the port was released.
fn unused_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    format!("https://{}", listener.local_addr().expect("an address"))
}

#[test]
fn refused_connection_delivers_nothing() {
    let endpoint = Endpoint::new(&unused_address(), Trust::Fingerprints(Box::new([start_server(|_| ServerReply::Close).fingerprint])))
        .expect("an address");
    let client = ProxmoxClient::new(endpoint, &test_token(), test_limits()).expect("a client");
    let failure = exchange_command(&client, &stop_command()).expect_err("a failure");
    assert_eq!((failure.cause, failure.delivery), (FailureCause::Unreachable, Delivery::NotDelivered));
    assert!(failure.to_string().ends_with(": connection refused"), "{failure}");
}

/// Proxmox closes an idle connection after 5 s, and a request that is just being sent on it is lost.
#[test]
fn reuses_idle_connections_and_closes_them_before_proxmox() {
    let proxmox = ScriptedProxmox::with_guests(STANDALONE_NODE, []);
    let server = start_server(move |seen| ServerReply::KeepAlive(proxmox.respond(&seen.method, &seen.path)));
    let connections = || server.connections.load(std::sync::atomic::Ordering::SeqCst);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        // While a blocking task runs, the paused clock advances only explicitly, and the test waits for the server.
        let (release, held) = std::sync::mpsc::channel::<()>();
        let holder = tokio::task::spawn_blocking(move || held.recv().is_err());
        let client = server.client_with(server.pinned_trust());
        let ask_after = async |wait: Duration| {
            tokio::time::advance(wait).await;
            client.exchange(&encode(&version_command())).await.expect("an answer");
            // The connection returns to the pool only after its own task has run.
            for _ in 0..32 {
                tokio::task::yield_now().await;
            }
            connections()
        };
        assert_eq!(ask_after(Duration::ZERO).await, 1);
        assert_eq!(ask_after(Duration::from_secs(2)).await, 1, "it is reused");
        assert_eq!(ask_after(Duration::from_millis(4_500)).await, 2, "it was idle for too long, before Proxmox would have closed it");
        assert_eq!(ask_after(Duration::from_secs(60)).await, 3);
        drop(release);
        assert!(holder.await.expect("it ends"));
    });
}

fn observer_of(servers: &[(String, Trust)]) -> ProxmoxObserver {
    let endpoints = servers.iter().map(|(url, trust)| Endpoint::new(url, trust.clone()).expect("an address")).collect();
    let name = EnvironmentName::new("lab").expect("a name");
    ProxmoxObserver::new(ConnectionSettings { name, cluster: Some("lab".into()), endpoints, token: test_token(), bounds: test_limits() })
        .expect("an observer")
}

fn serve_scripted(proxmox: ScriptedProxmox) -> TestHttpsServer {
    start_server(move |seen| ServerReply::Answer(proxmox.respond(&seen.method, &seen.path)))
}

/// The reports of progress while this many guests are read.
fn progress_of_reading(count: u32) -> Vec<(u64, u64)> {
    let cluster = cluster_rows("lab", 1, &[("n1", 1), ("n2", 1)]);
    let node = |vmid: u32| if vmid.is_multiple_of(2) { "n1" } else { "n2" };
    let guests = (100..100 + count).map(|vmid| (vmid, stopped_guest(vmid, node(vmid))));
    let proxmox = ScriptedProxmox::with_guests(&cluster, guests);
    let (ids, reports) = ((100..100 + u64::from(count)).collect::<Vec<u64>>(), Mutex::new(Vec::new()));
    let progress = |read: u64, total: u64| reports.lock().expect("unpoisoned").push((read, total));
    let reading = take_reading_with_progress(&proxmox, &ids, &ReadSet::Everything, None, &progress).expect("a reading");
    assert_eq!(reading.observation.guests.len(), ids.len());
    reports.into_inner().expect("unpoisoned")
}

#[test]
fn a_reading_reports_how_many_guests_were_read() {
    assert_eq!(progress_of_reading(3), [(0, 3), (1, 3), (2, 3), (3, 3)]);
    let many = progress_of_reading(250);
    assert_eq!((many[0], many[1], many[many.len() - 1]), ((0, 250), (3, 250), (250, 250)), "{many:?}");
    assert!(many.len() <= 102 && many.is_sorted(), "a report for every guest would flood the subscribers: {many:?}");
}

#[test]
fn observation_uses_one_endpoint_and_two_requests_per_node() {
    let cluster = cluster_rows("lab", 1, &[("n1", 1), ("n2", 1)]);
    let proxmox =
        ScriptedProxmox::with_guests(&cluster, (100..130).map(|vmid| (vmid, stopped_guest(vmid, if vmid % 2 == 0 { "n1" } else { "n2" }))));
    let (first, second) = (serve_scripted(proxmox.clone()), serve_scripted(proxmox));
    let observer = observer_of(&[
        (unused_address(), first.pinned_trust()),
        (first.url(), first.pinned_trust()),
        (second.url(), second.pinned_trust()),
    ]);
    let ids: Vec<u64> = (100..130).collect();
    let report = block_on(observer.take_report(&scope_of(&ids))).expect("a reading");
    assert_eq!(report.reading.guests.len(), 30);
    assert_eq!((report.endpoint.as_str(), report.requests), (first.address.to_string().as_str(), 94));
    assert_eq!((first.requests().len(), second.requests().len()), (94, 0));
    assert_eq!(report.passed_over, 1);
    assert_eq!(&*report.reading.notes[0].code, "endpoint-unreachable");
    assert!(report.reading.taken_at.is_some());
    let at_once = first.at_once_max.lock().expect("unpoisoned").clone();
    assert!(at_once.len() == 3 && at_once.values().all(|most| *most <= 2), "{at_once:?}");
}

#[test]
fn does_not_switch_endpoints_after_a_response() {
    let broken =
        start_server(|_| ServerReply::Answer(raw_response(500, "RPCEnvironment init request failed: Unable to load access control list")));
    let good = serve_scripted(ScriptedProxmox::with_guests(STANDALONE_NODE, []));
    let observer = observer_of(&[(broken.url(), broken.pinned_trust()), (good.url(), good.pinned_trust())]);
    assert!(matches!(block_on(observer.take_report(&scope_of(&[]))), Err(ProxmoxError::Unread(_))));
    assert_eq!((broken.requests().len(), good.requests().len()), (1, 0), "one attempt");
}

#[test]
fn wrong_pin_is_noted_in_the_observation_and_nothing_is_sent() {
    let new_proxmox = || ScriptedProxmox::with_guests(&cluster_rows("lab", 1, &[("n1", 1)]), [(100, stopped_guest(100, "n1"))]);
    let (other, good) = (serve_scripted(new_proxmox()), serve_scripted(new_proxmox()));
    let observer = observer_of(&[(other.url(), good.pinned_trust()), (good.url(), good.pinned_trust())]);
    let report = block_on(observer.take_report(&scope_of(&[100]))).expect("a reading");
    assert_eq!((report.endpoint.as_str(), report.passed_over), (good.address.to_string().as_str(), 1));
    assert!(other.requests().is_empty(), "the token is not sent to the untrusted server");
    let note = &report.reading.notes[0];
    assert_eq!((&*note.code, note.guest), ("pin-mismatch", None));
    assert!(note.text.contains(&other.address.to_string()) && note.text.contains(&other.fingerprint.to_string()), "{note:?}");
    assert!(note.remedy.contains("pvenode cert info"), "{note:?}");
}

#[test]
fn wrong_pin_outweighs_unreachable_endpoints() {
    let other = serve_scripted(ScriptedProxmox::with_guests(STANDALONE_NODE, []));
    let wrong = start_server(|_| ServerReply::Close).pinned_trust();
    for endpoints in [
        [(unused_address(), wrong.clone()), (other.url(), wrong.clone())],
        [(other.url(), wrong.clone()), (unused_address(), wrong.clone())],
    ] {
        let error = block_on(observer_of(&endpoints).take_report(&scope_of(&[100]))).expect_err("no reading");
        assert_eq!(error.code(), Some(FailureCode::PinMismatch), "{error}");
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("pvenode cert info")), "{error}");
    }
}

#[test]
fn names_every_unreachable_endpoint_with_its_reason() {
    let (one, two) = (unused_address(), unused_address());
    let trust = Trust::Fingerprints(Box::new([start_server(|_| ServerReply::Close).fingerprint]));
    let observer = observer_of(&[(one.clone(), trust.clone()), (two.clone(), trust)]);
    let error = block_on(observer.take_report(&scope_of(&[100]))).expect_err("no reading").to_string();
    for url in [one, two] {
        assert!(error.contains(url.trim_start_matches("https://")), "{error}");
    }
}

#[test]
fn doctor_reports_certificates_and_clocks() {
    let progress = std::cell::RefCell::new(Vec::new());
    let server = serve_scripted(ScriptedProxmox::with_guests(STANDALONE_NODE, []));
    let other = Trust::Fingerprints(Box::new([Fingerprint::of_certificate(b"another")]));
    let unused_url = unused_address();
    let observer =
        observer_of(&[(unused_url.clone(), server.pinned_trust()), (server.url(), other), (server.url(), server.pinned_trust())]);
    let findings = block_on(observer.examine(None, &|what| progress.borrow_mut().push(what.to_owned()))).findings;
    let at = |url: &str, check: &str| {
        let endpoint_name = url.trim_start_matches("https://");
        findings
            .iter()
            .filter(|own| own.about.as_deref() == Some(endpoint_name) && own.check == check)
            .map(|own| own.level)
            .collect::<Vec<_>>()
    };
    assert_eq!(at(&unused_url, "endpoint"), [FindingLevel::Warn], "another endpoint responds: {findings:#?}");
    assert_eq!(at(&server.url(), "endpoint"), [FindingLevel::Fail, FindingLevel::Ok]);
    assert_eq!((at(&server.url(), "tls-pin"), at(&server.url(), "tls")), (vec![FindingLevel::Fail], vec![FindingLevel::Ok]));
    assert_eq!(at(&server.url(), "version"), [FindingLevel::Ok]);
    let pin = findings.iter().find(|own| own.check == "tls-pin").and_then(|own| own.remedy.as_ref()).expect("a remedy");
    assert!(pin.lines.iter().any(|line| line.text == format!("fingerprints = [\"{}\"]", server.fingerprint)), "{pin:?}");
    assert!(progress.borrow().first().is_some_and(|first| first.contains(unused_url.trim_start_matches("https://"))));
    assert!(server.requests().iter().all(|request| request.method == "GET"), "an examination changes nothing (G5)");
}

#[test]
fn detects_a_wrong_clock_in_the_date_header() {
    let date =
        b"HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nConnection: close\r\n\r\n{\"data\":{\"version\":\"8.4\"}}".to_vec();
    let past = start_server(move |_| ServerReply::Raw(date.clone()));
    let findings = block_on(observer_of(&[(past.url(), past.pinned_trust())]).examine(None, &|_| {})).findings;
    let clock = findings.iter().find(|own| own.check == "clock").expect("a clock");
    assert!(clock.level == FindingLevel::Fail && clock.found.contains("behind ours"), "{clock:?}");
}

#[test]
fn redacts_an_echoed_secret() {
    let secret = crate::https_server::SECRET;
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
        let server = start_server(move |_| ServerReply::Raw(bytes.clone()));
        let failure = exchange_command(&server.client_with(server.pinned_trust()), &version_command()).expect_err("a failure");
        let shown = format!("{failure} {failure:?}");
        assert!(!shown.contains(secret) && shown.contains("(secret)"), "{shown}");
    }
}

#[test]
fn redacts_a_json_escaped_secret_in_keys_and_values() {
    let secret = crate::https_server::SECRET;
    for escaped in [secret.replace('-', "\\u002d"), secret.chars().map(|own| format!("\\u{:04X}", u32::from(own))).collect()] {
        let response_body =
            format!(r#"{{"success":0,"status":400,"message":"{escaped}","errors":{{"{escaped}":"{escaped}"}},"data":null}}"#);
        for status in ["200 OK", "502 Bad Gateway"] {
            let bytes = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{response_body}", response_body.len()).into_bytes();
            let server = start_server(move |_| ServerReply::Raw(bytes.clone()));
            let failure = exchange_command(&server.client_with(server.pinned_trust()), &version_command()).expect_err("a failure");
            let shown = format!("{failure} {failure:?}");
            assert!(!shown.contains(secret) && shown.matches("(secret)").count() >= 3, "{shown}");
        }
        let body = format!(r#"{{"data":{{"version":"8.4-{escaped}"}}}}"#);
        let server = start_server(move |_| {
            ServerReply::Raw(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes())
        });
        let shown = format!("{:?}", exchange_command(&server.client_with(server.pinned_trust()), &version_command()));
        assert!(!shown.contains(secret), "{shown}");
    }
}

/// Number of requests to the server of the test below, which drives its clock.
static REQUEST_COUNT: AtomicU64 = AtomicU64::new(0);

#[test]
fn g1_observation_is_dated_by_its_start() {
    let proxmox = ScriptedProxmox::with_guests(&cluster_rows("lab", 1, &[("n1", 1)]), [(100, stopped_guest(100, "n1"))]);
    let server = start_server(move |seen| {
        REQUEST_COUNT.fetch_add(1, Ordering::SeqCst);
        ServerReply::Answer(proxmox.respond(&seen.method, &seen.path))
    });
    let clock = || SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + 60 * REQUEST_COUNT.load(Ordering::SeqCst));
    let report = block_on(observer_of(&[(server.url(), server.pinned_trust())]).with_clock(clock).take_report(&scope_of(&[100])))
        .expect("a reading");
    assert!(report.requests >= 3, "time passed while it was taken");
    assert_eq!(report.reading.taken_at.as_deref(), Some("2027-01-15T08:00:00Z"));
}
