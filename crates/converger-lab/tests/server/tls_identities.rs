//! The TLS identities of nodes, valid and invalid.

use converger_lab::server::{ClockMode, LabCertificates};
use converger_lab::{TlsIdentity, WorldEvent};
use rustls::{CertificateError, Error};
use sha2::{Digest, Sha256};

use crate::lab::{LOOPBACK, StreamLab, WORLD, get_request, run_paused, test_certificates};

fn show_identity(lab: &StreamLab, tls_identity: TlsIdentity) {
    lab.server.world().lock().apply_event(0, WorldEvent::Show("a".to_owned(), tls_identity));
}

/// Why a client that trusts the lab's authority does not connect to a node with this name.
async fn connect_error(lab: &StreamLab, name: &'static str) -> Error {
    match lab.try_connect(name).await {
        Ok(_) => panic!("connected"),
        Err(error) => error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).unwrap_or_else(|| panic!("{error}")).clone(),
    }
}

#[test]
fn a_client_that_trusts_the_authority_connects_to_every_name_of_the_lab() {
    run_paused(async {
        let lab = StreamLab::new();
        for name in ["a", "b", "localhost", "127.0.0.1", "::1"] {
            assert!(lab.try_connect(name).await.is_ok(), "{name}");
        }
        assert!(matches!(connect_error(&lab, "c").await, Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })));
    });
}

#[test]
fn each_bad_certificate_has_exactly_one_fault() {
    run_paused(async {
        let lab = StreamLab::new();
        show_identity(&lab, TlsIdentity::Expired);
        assert!(matches!(connect_error(&lab, "a").await, Error::InvalidCertificate(CertificateError::ExpiredContext { .. })));
        show_identity(&lab, TlsIdentity::OtherName);
        assert!(matches!(connect_error(&lab, "a").await, Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })));
        assert!(lab.try_connect("other.invalid").await.is_ok(), "everything but the name is valid");
        show_identity(&lab, TlsIdentity::OtherKey);
        let error = connect_error(&lab, "a").await;
        let is_unknown = matches!(&error, Error::InvalidCertificate(CertificateError::BadSignature | CertificateError::UnknownIssuer));
        assert!(is_unknown, "{error:?}");
        show_identity(&lab, TlsIdentity::Noise);
        assert!(matches!(connect_error(&lab, "a").await, Error::InvalidMessage(_)));
        show_identity(&lab, TlsIdentity::Own);
        assert_eq!(lab.connect().await.request(&get_request("/version")).await.line, "HTTP/1.1 200 OK");
    });
}

#[test]
fn files_can_schedule_tls_identities() {
    run_paused(async {
        let moments = "faults: { moments: [{ at_ms: 0, act: { show: [a, expired] } }, { at_ms: 60000, act: { show: [a, own] } }] }\n";
        let lab = StreamLab::from_yaml(&format!("{WORLD}{moments}"), ClockMode::Real { speed: 1 });
        assert!(lab.try_connect("a").await.is_err());
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert!(lab.try_connect("a").await.is_ok());
    });
}

#[test]
fn the_fingerprint_is_that_of_the_presented_certificate() {
    run_paused(async {
        let identity = test_certificates();
        let (shown, pem) = (identity.fingerprint(), identity.pem().to_owned());
        let restored = LabCertificates::from_pem(&pem).expect("the saved certificates");
        assert_eq!((restored.fingerprint(), restored.authority_pem()), (shown.clone(), identity.authority_pem()));
        assert_eq!(restored.names().collect::<Vec<_>>(), ["127.0.0.1", "::1", "a", "b", "localhost"]);
        let spec = converger_lab::WorldSpec::from_yaml(WORLD).expect("a setting");
        let world = converger_lab::World::new(&spec).expect("a world");
        let tls = crate::lab::trusting_connector(&restored);
        let server =
            converger_lab::server::LabServer::from_world(world, crate::lab::server_options(ClockMode::Virtual { step_ms: 0 }, restored))
                .expect("a server");
        let caller = StreamLab { server, tls, node: "a" }.connect().await;
        let leaf = caller.stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).expect("a certificate").clone();
        let digest: Vec<String> = Sha256::digest(leaf.as_ref()).iter().map(|byte| format!("{byte:02X}")).collect();
        assert_eq!(digest.join(":"), shown);
    });
}

#[test]
fn incomplete_certificate_files_are_refused() {
    let whole = LabCertificates::new(["a"].into_iter(), LOOPBACK).expect("a certificate").pem().to_owned();
    let half = whole.split("-----BEGIN PRIVATE KEY-----").next().unwrap_or_default();
    for wrong in ["", "nonsense", half] {
        let refused = LabCertificates::from_pem(wrong).err().map(|error| error.to_string());
        assert!(refused.as_deref().is_some_and(|text| text.contains("two certificates")), "{refused:?}");
    }
    assert!(LabCertificates::new(["a b"].into_iter(), LOOPBACK).is_ok(), "a name with a blank is accepted, although nobody can use it");
    assert!(LabCertificates::new(["ä"].into_iter(), LOOPBACK).is_err());
}
