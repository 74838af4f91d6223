//! TLS trust: the client sends nothing, not even a path, before it has accepted the certificate.

use std::sync::Arc;

use converger_adapters::proxmox::client::{Endpoint, Fingerprint, ProxmoxClient, ProxmoxTransport, RequestLimits, Trust, TrustFailure};
use converger_adapters::proxmox::codec::{Delivery, FailureCause, HttpResponse, ProxmoxCommand, ProxmoxFailure, ProxmoxRead, encode};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::https_server::{
    ServerReply, TestAuthority, TestCertificate, TestHttpsServer, server_config, start_server, start_server_with, test_certificate,
    test_limits, test_token,
};
use crate::scripted_proxmox::success_response;

fn request_version(client: &ProxmoxClient) -> Result<HttpResponse, ProxmoxFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(client.exchange(&encode(&ProxmoxCommand::Read(ProxmoxRead::Version))))
}

fn serve_certificate(identity: &TestCertificate) -> TestHttpsServer {
    let config = server_config().with_single_cert(identity.chain.clone(), identity.key.clone_key()).expect("a certificate");
    start_server_with(&identity.chain[0], config, |_| ServerReply::Answer(success_response("null")))
}

/// Checks that nothing was sent, and that the message contains these parts.
fn check_untrusted(server: &TestHttpsServer, trust: Trust, trust_failure: &TrustFailure, parts: &[&str]) {
    let client = server.client_with(trust);
    let failure = request_version(&client).expect_err("not trusted");
    let watch = client.monitor();
    assert_eq!((watch.distrust().as_ref(), watch.fingerprint()), (Some(trust_failure), Some(server.fingerprint)));
    let cause = match trust_failure {
        TrustFailure::NotPinned => FailureCause::PinMismatch,
        TrustFailure::Expired | TrustFailure::NotYetValid => FailureCause::CertificateExpired,
        TrustFailure::OtherName(_) => FailureCause::CertificateOtherName,
        _ => FailureCause::Untrusted,
    };
    assert_eq!((failure.cause, failure.delivery), (cause, Delivery::NotDelivered), "{failure}");
    for part in parts {
        assert!(failure.to_string().contains(part), "{failure}");
    }
    assert_eq!(server.requests().len(), 0, "nothing reached the server");
}

#[test]
fn trusts_any_pinned_certificate() {
    let server = start_server(|_| ServerReply::Answer(success_response("null")));
    let old = Fingerprint::of_certificate(b"the certificate before it was renewed");
    assert!(request_version(&server.client_with(Trust::Fingerprints(Box::new([old, server.fingerprint])))).is_ok());
}

#[test]
fn does_not_trust_an_unpinned_certificate() {
    let server = start_server(|_| ServerReply::Answer(success_response("null")));
    let fingerprint = server.fingerprint.to_string();
    let pins = Trust::Fingerprints(Box::new([Fingerprint::of_certificate(b"another")]));
    check_untrusted(&server, pins, &TrustFailure::NotPinned, &["does not match the pinned fingerprint", &fingerprint]);
}

/// Presents a certificate without having its key.
#[derive(Debug)]
struct KeylessCertResolver(Arc<CertifiedKey>);

impl ResolvesServerCert for KeylessCertResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

#[test]
fn pinned_certificate_without_its_key_is_not_trusted() {
    let (real, other) = (test_certificate(), test_certificate());
    let key = any_supported_type(&other.key).expect("a key");
    let resolver = KeylessCertResolver(Arc::new(CertifiedKey::new(real.chain.clone(), key)));
    let config = server_config().with_cert_resolver(Arc::new(resolver));
    let server = start_server_with(&real.chain[0], config, |_| ServerReply::Answer(success_response("null")));
    check_untrusted(&server, server.pinned_trust(), &TrustFailure::WithoutKey, &["does not have its private key"]);
}

#[test]
fn trusts_only_the_authorities_of_the_file() {
    let (own, other) = (TestAuthority::new(), TestAuthority::new());
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ca.pem");
    std::fs::write(&path, own.pem()).expect("written");
    let trust = Trust::CaFile(path);
    let other_name = TrustFailure::OtherName(Box::new(["pve9.example".to_owned()]));
    assert!(request_version(&serve_certificate(&own.issue("127.0.0.1", |_| {})).client_with(trust.clone())).is_ok());
    check_untrusted(
        &serve_certificate(&other.issue("127.0.0.1", |_| {})),
        trust.clone(),
        &TrustFailure::UnknownIssuer,
        &["authority that is not trusted"],
    );
    check_untrusted(&serve_certificate(&own.issue("pve9.example", |_| {})), trust.clone(), &other_name, &["for another name"]);
    let expired = own.issue("127.0.0.1", |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    check_untrusted(&serve_certificate(&expired), trust.clone(), &TrustFailure::Expired, &["has expired"]);
    let early = own.issue("127.0.0.1", |params| params.not_before = rcgen::date_time_ymd(2900, 1, 1));
    check_untrusted(&serve_certificate(&early), trust, &TrustFailure::NotYetValid, &["not valid yet", "clock"]);
}

#[test]
fn system_trust_rejects_self_signed_certificates() {
    let server = start_server(|_| ServerReply::Answer(success_response("null")));
    let endpoint = Endpoint::new(&server.url(), Trust::System).expect("an address");
    // On a machine without any authority, no client can be set up.
    if let Ok(client) = ProxmoxClient::new(endpoint, &test_token(), test_limits()) {
        assert_eq!(request_version(&client).expect_err("not trusted").cause, FailureCause::Untrusted);
    }
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn sends_nothing_to_a_server_without_tls() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let plain = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut received = vec![0; 4096];
        let length = stream.read(&mut received).expect("read");
        stream.write_all(b"HTTP/1.1 301 Moved Permanently\r\nConnection: close\r\n\r\n").expect("written");
        received[..length].to_vec()
    });
    let trust = Trust::Fingerprints(Box::new([Fingerprint::of_certificate(b"x")]));
    let endpoint = Endpoint::new(&format!("https://{address}"), trust).expect("an address");
    let client = ProxmoxClient::new(endpoint, &test_token(), RequestLimits { ..test_limits() }).expect("a client");
    let failure = request_version(&client).expect_err("no TLS");
    assert_eq!((failure.cause, failure.delivery), (FailureCause::NotTls, Delivery::NotDelivered));
    let received = plain.join().expect("ended");
    assert!(!String::from_utf8_lossy(&received).contains("PVEAPIToken"), "the token is not sent before TLS is established");
}

#[test]
fn unusable_authority_file_error_says_what_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("cut.pem"), "-----BEGIN CERTIFICATE-----\nMIIB\n").expect("written");
    std::fs::write(path("empty.pem"), "").expect("written");
    std::fs::create_dir(path("folder.pem")).expect("made");
    for (name, part) in [
        ("missing.pem", "does not exist; copy /etc/pve/pve-root-ca.pem from a node"),
        ("cut.pem", "is not in PEM format"),
        ("empty.pem", "holds no usable certificate"),
        ("folder.pem", "cannot be read ("),
    ] {
        let endpoint = Endpoint::new("https://pve1.example", Trust::CaFile(path(name))).expect("an address");
        let error = ProxmoxClient::new(endpoint, &test_token(), RequestLimits::default()).expect_err(name).to_string();
        assert!(error.contains(name) && error.contains(part), "{error}");
    }
}

#[test]
fn certificate_names_are_cut_and_redacted() {
    let own = TestAuthority::new();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ca.pem");
    std::fs::write(&path, own.pem()).expect("written");
    let names: Vec<String> = (0..500).map(|index| format!("{}.n{index}.example", crate::https_server::SECRET)).collect();
    let many = own.issue("pve9.example", |params| {
        params.subject_alt_names = names.iter().map(|name| rcgen::SanType::DnsName(name.as_str().try_into().expect("a name"))).collect();
    });
    let server = serve_certificate(&many);
    let client = server.client_with(Trust::CaFile(path));
    let shown = format!("{} {:?}", request_version(&client).expect_err("another name"), client.monitor());
    assert!(!shown.contains(crate::https_server::SECRET) && shown.contains("(secret).n9.example, 490 more"), "{shown}");
    assert!(!shown.contains("n10.example"), "{shown}");
}
