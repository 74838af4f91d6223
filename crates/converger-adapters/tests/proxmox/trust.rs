//! Whom the client trusts: nothing is sent, not even a path, before the certificate was found to be one of those that are meant.

use std::sync::Arc;

use converger_adapters::proxmox::client::{Bounds, Client, Distrust, Endpoint, Exchange, Fingerprint, Trust};
use converger_adapters::proxmox::codec::{Cause, Command, Delivery, Failure, HttpAnswer, Read, encode};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::desk::success;
use crate::server::{Authority, Identity, Reply, Server, bounds, identity, server_config, start, start_with, token};

fn ask(client: &Client) -> Result<HttpAnswer, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(client.exchange(&encode(&Command::Read(Read::Version))))
}

fn serve(identity: &Identity) -> Server {
    let config = server_config().with_single_cert(identity.chain.clone(), identity.key.clone_key()).expect("a certificate");
    start_with(&identity.chain[0], config, |_| Reply::Answer(success("null")))
}

/// Nothing was sent, and the sentence holds these words.
fn check_untrusted(server: &Server, trust: Trust, distrust: &Distrust, parts: &[&str]) {
    let client = server.client(trust);
    let failure = ask(&client).expect_err("not trusted");
    let watch = client.watch();
    assert_eq!((watch.distrust().as_ref(), watch.fingerprint()), (Some(distrust), Some(server.fingerprint)));
    let cause = match distrust {
        Distrust::NotPinned => Cause::PinMismatch,
        Distrust::Expired | Distrust::NotYetValid => Cause::CertificateExpired,
        Distrust::OtherName(_) => Cause::CertificateOtherName,
        _ => Cause::Untrusted,
    };
    assert_eq!((failure.cause, failure.delivery), (cause, Delivery::NotDelivered), "{failure}");
    for part in parts {
        assert!(failure.to_string().contains(part), "{failure}");
    }
    assert_eq!(server.requests().len(), 0, "nothing reached the server");
}

#[test]
fn a_pinned_certificate_is_trusted_and_any_of_several_pins_will_do() {
    let server = start(|_| Reply::Answer(success("null")));
    let old = Fingerprint::of(b"the certificate before it was renewed");
    assert!(ask(&server.client(Trust::Fingerprints(Box::new([old, server.fingerprint])))).is_ok());
}

#[test]
fn another_certificate_than_the_pinned_ones_is_not_trusted() {
    let server = start(|_| Reply::Answer(success("null")));
    let shown = server.fingerprint.to_string();
    let pins = Trust::Fingerprints(Box::new([Fingerprint::of(b"another")]));
    check_untrusted(&server, pins, &Distrust::NotPinned, &["not the one that is pinned", &shown]);
}

/// Shows a certificate without having its key.
#[derive(Debug)]
struct Impostor(Arc<CertifiedKey>);

impl ResolvesServerCert for Impostor {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

#[test]
fn showing_a_pinned_certificate_without_its_key_is_not_enough() {
    let (real, other) = (identity(), identity());
    let key = any_supported_type(&other.key).expect("a key");
    let resolver = Impostor(Arc::new(CertifiedKey::new(real.chain.clone(), key)));
    let config = server_config().with_cert_resolver(Arc::new(resolver));
    let server = start_with(&real.chain[0], config, |_| Reply::Answer(success("null")));
    check_untrusted(&server, server.pinned(), &Distrust::WithoutKey, &["does not have its key"]);
}

#[test]
fn authorities_of_a_file_are_trusted_and_no_others() {
    let (own, other) = (Authority::new(), Authority::new());
    let room = tempfile::tempdir().expect("a directory");
    let path = room.path().join("ca.pem");
    std::fs::write(&path, own.pem()).expect("written");
    let trust = Trust::CaFile(path);
    let other_name = Distrust::OtherName(Box::new(["pve9.example".to_owned()]));
    assert!(ask(&serve(&own.issue("127.0.0.1", |_| {})).client(trust.clone())).is_ok());
    check_untrusted(&serve(&other.issue("127.0.0.1", |_| {})), trust.clone(), &Distrust::UnknownIssuer, &["authority that is not trusted"]);
    check_untrusted(&serve(&own.issue("pve9.example", |_| {})), trust.clone(), &other_name, &["for another name"]);
    let expired = own.issue("127.0.0.1", |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    check_untrusted(&serve(&expired), trust.clone(), &Distrust::Expired, &["has expired"]);
    let early = own.issue("127.0.0.1", |params| params.not_before = rcgen::date_time_ymd(2900, 1, 1));
    check_untrusted(&serve(&early), trust, &Distrust::NotYetValid, &["not valid yet", "clock"]);
}

#[test]
fn the_system_does_not_trust_what_anybody_can_make() {
    let server = start(|_| Reply::Answer(success("null")));
    let endpoint = Endpoint::new(&server.url(), Trust::System).expect("an address");
    // A machine without any authority gives no client at all.
    if let Ok(client) = Client::new(endpoint, &token(), bounds()) {
        assert_eq!(ask(&client).expect_err("not trusted").cause, Cause::Untrusted);
    }
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn a_server_that_does_not_speak_tls_is_told_nothing() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let plain = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut heard = vec![0; 4096];
        let length = stream.read(&mut heard).expect("read");
        stream.write_all(b"HTTP/1.1 301 Moved Permanently\r\nConnection: close\r\n\r\n").expect("written");
        heard[..length].to_vec()
    });
    let trust = Trust::Fingerprints(Box::new([Fingerprint::of(b"x")]));
    let endpoint = Endpoint::new(&format!("https://{address}"), trust).expect("an address");
    let client = Client::new(endpoint, &token(), Bounds { ..bounds() }).expect("a client");
    let failure = ask(&client).expect_err("no TLS");
    assert_eq!((failure.cause, failure.delivery), (Cause::NotTls, Delivery::NotDelivered));
    let heard = plain.join().expect("ended");
    assert!(!String::from_utf8_lossy(&heard).contains("PVEAPIToken"), "the token is not sent before TLS stands");
}

#[test]
fn a_file_of_authorities_that_cannot_be_used_says_what_is_wrong_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("cut.pem"), "-----BEGIN CERTIFICATE-----\nMIIB\n").expect("written");
    std::fs::write(path("empty.pem"), "").expect("written");
    std::fs::create_dir(path("folder.pem")).expect("made");
    for (name, part) in [
        ("missing.pem", "is not there; copy it from a node"),
        ("cut.pem", "is not in PEM form"),
        ("empty.pem", "holds no certificate"),
        ("folder.pem", "cannot be read ("),
    ] {
        let endpoint = Endpoint::new("https://pve1.example", Trust::CaFile(path(name))).expect("an address");
        let error = Client::new(endpoint, &token(), Bounds::default()).expect_err(name).to_string();
        assert!(error.contains(name) && error.contains(part), "{error}");
    }
}

#[test]
fn names_in_a_certificate_are_told_in_part_and_without_the_secret() {
    let own = Authority::new();
    let room = tempfile::tempdir().expect("a directory");
    let path = room.path().join("ca.pem");
    std::fs::write(&path, own.pem()).expect("written");
    let names: Vec<String> = (0..500).map(|index| format!("{}.n{index}.example", crate::server::SECRET)).collect();
    let many = own.issue("pve9.example", |params| {
        params.subject_alt_names = names.iter().map(|name| rcgen::SanType::DnsName(name.as_str().try_into().expect("a name"))).collect();
    });
    let server = serve(&many);
    let client = server.client(Trust::CaFile(path));
    let shown = format!("{} {:?}", ask(&client).expect_err("another name"), client.watch());
    assert!(!shown.contains(crate::server::SECRET) && shown.contains("(secret).n9.example, 490 more"), "{shown}");
    assert!(!shown.contains("n10.example"), "{shown}");
}
