//! What a node shows to those who begin TLS, good and bad.

use converger_lab::server::{Clock, Identity};
use converger_lab::{Act, Face};
use rustls::{CertificateError, Error};
use sha2::{Digest, Sha256};

use crate::lab::{LOOPBACK, Lab, WORLD, get, identity, paused};

fn show(lab: &Lab, face: Face) {
    lab.server.world().lock().act(0, Act::Show("a".to_owned(), face));
}

/// Why a client that trusts the lab's authority does not connect to a node of this name.
async fn refused(lab: &Lab, name: &'static str) -> Error {
    match lab.try_call(name).await {
        Ok(_) => panic!("connected"),
        Err(error) => error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).unwrap_or_else(|| panic!("{error}")).clone(),
    }
}

#[test]
fn a_client_that_trusts_the_authority_connects_to_every_name_of_the_lab() {
    paused(async {
        let lab = Lab::new();
        for name in ["a", "b", "localhost", "127.0.0.1", "::1"] {
            assert!(lab.try_call(name).await.is_ok(), "{name}");
        }
        assert!(matches!(refused(&lab, "c").await, Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })));
    });
}

#[test]
fn each_wrong_certificate_is_wrong_in_one_way() {
    paused(async {
        let lab = Lab::new();
        show(&lab, Face::Expired);
        assert!(matches!(refused(&lab, "a").await, Error::InvalidCertificate(CertificateError::ExpiredContext { .. })));
        show(&lab, Face::OtherName);
        assert!(matches!(refused(&lab, "a").await, Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })));
        assert!(lab.try_call("other.invalid").await.is_ok(), "besides the name all is well");
        show(&lab, Face::OtherKey);
        let error = refused(&lab, "a").await;
        let is_unknown = matches!(&error, Error::InvalidCertificate(CertificateError::BadSignature | CertificateError::UnknownIssuer));
        assert!(is_unknown, "{error:?}");
        show(&lab, Face::Noise);
        assert!(matches!(refused(&lab, "a").await, Error::InvalidMessage(_)));
        show(&lab, Face::Own);
        assert_eq!(lab.call().await.ask(&get("/version")).await.line, "HTTP/1.1 200 OK");
    });
}

#[test]
fn a_file_says_when_which_face_is_shown() {
    paused(async {
        let moments = "faults: { moments: [{ at_ms: 0, act: { show: [a, expired] } }, { at_ms: 60000, act: { show: [a, own] } }] }\n";
        let lab = Lab::of(&format!("{WORLD}{moments}"), Clock::Real { speed: 1 });
        assert!(lab.try_call("a").await.is_err());
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert!(lab.try_call("a").await.is_ok());
    });
}

#[test]
fn the_fingerprint_is_that_of_what_is_shown() {
    paused(async {
        let identity = identity();
        let (shown, pem) = (identity.fingerprint(), identity.pem().to_owned());
        let kept = Identity::from_pem(&pem).expect("what was written");
        assert_eq!((kept.fingerprint(), kept.authority_pem()), (shown.clone(), identity.authority_pem()));
        assert_eq!(kept.names().collect::<Vec<_>>(), ["127.0.0.1", "::1", "a", "b", "localhost"]);
        let setting = converger_lab::Setting::from_yaml(WORLD).expect("a setting");
        let world = converger_lab::World::new(&setting).expect("a world");
        let tls = crate::lab::trusting(&kept);
        let server = converger_lab::server::Server::of(world, crate::lab::options(Clock::Virtual { step_ms: 0 }, kept)).expect("a server");
        let caller = Lab { server, tls, node: "a" }.call().await;
        let leaf = caller.stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).expect("a certificate").clone();
        let digest: Vec<String> = Sha256::digest(leaf.as_ref()).iter().map(|byte| format!("{byte:02X}")).collect();
        assert_eq!(digest.join(":"), shown);
    });
}

#[test]
fn what_is_no_identity_is_refused() {
    let whole = Identity::new(["a"].into_iter(), LOOPBACK).expect("a certificate").pem().to_owned();
    let half = whole.split("-----BEGIN PRIVATE KEY-----").next().unwrap_or_default();
    for wrong in ["", "nonsense", half] {
        let refused = Identity::from_pem(wrong).err().map(|error| error.to_string());
        assert!(refused.as_deref().is_some_and(|text| text.contains("two certificates")), "{refused:?}");
    }
    assert!(Identity::new(["a b"].into_iter(), LOOPBACK).is_ok(), "a name with a blank is only useless");
    assert!(Identity::new(["ä"].into_iter(), LOOPBACK).is_err());
}
