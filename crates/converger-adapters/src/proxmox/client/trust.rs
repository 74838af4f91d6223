//! Whom to trust: the system's authorities, those of a file, or certificates by their SHA-256 fingerprint.
//!
//! Verification is never switched off. A pinned certificate is compared by its fingerprint, and the handshake must be signed with
//! its key; name and dates do not matter then, because somebody looked at that very certificate
//! (`docs/decisions/0008-trust.md`).

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::endpoint_monitor::EndpointMonitor;

/// So many names of a certificate are told, and so much of each; that is as long as a name in DNS can be.
const NAMES_MAX: usize = 10;
const SHOWN_CHARS_MAX: usize = 253;

/// The SHA-256 of a certificate, as Proxmox shows it: pairs of hexadecimal digits joined by colons.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Parses it, in any case of letters.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        let mut pairs = text.split(':');
        for byte in &mut bytes {
            let pair = pairs.next().filter(|pair| pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        pairs.next().is_none().then_some(Self(bytes))
    }

    /// The fingerprint of a certificate.
    #[must_use]
    pub fn of_certificate(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            write!(formatter, "{}{byte:02X}", if index > 0 { ":" } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Whom to trust at an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The authorities that the system trusts.
    System,
    /// The authorities in this file (PEM), and no others.
    CaFile(PathBuf),
    /// These certificates, and no others. Several, so that one can be renewed.
    Fingerprints(Box<[Fingerprint]>),
}

/// Why whoever answered was not trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustFailure {
    /// Its certificate is none of those that are pinned.
    NotPinned,
    /// It shows a pinned certificate and does not have its key.
    WithoutKey,
    /// Its certificate has expired.
    Expired,
    /// Its certificate is not valid yet.
    NotYetValid,
    /// Its certificate is for other names: these, as far as they are known.
    OtherName(Box<[String]>),
    /// Its certificate is from an authority that is not trusted.
    UnknownIssuer,
    /// Its certificate is wrong in another way.
    Certificate(String),
    /// It does not speak TLS, or not one that is spoken here.
    Protocol(String),
}

impl TrustFailure {
    /// What an error of TLS amounts to, where this was trusted.
    pub(super) fn from_tls_error(error: &rustls::Error, trust: &Trust) -> Self {
        let rustls::Error::InvalidCertificate(fault) = error else { return Self::Protocol(error.to_string()) };
        match (fault, trust) {
            (CertificateError::ApplicationVerificationFailure, Trust::Fingerprints(_)) => Self::NotPinned,
            (CertificateError::BadSignature, Trust::Fingerprints(_)) => Self::WithoutKey,
            (CertificateError::Expired | CertificateError::ExpiredContext { .. }, _) => Self::Expired,
            (CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }, _) => Self::NotYetValid,
            (CertificateError::NotValidForNameContext { presented, .. }, _) => {
                Self::OtherName(presented.iter().map(|name| strip_name_kind(name)).collect())
            }
            (CertificateError::NotValidForName, _) => Self::OtherName(Box::new([])),
            (CertificateError::UnknownIssuer | CertificateError::BadSignature, _) => Self::UnknownIssuer,
            _ => Self::Certificate(format!("{fault:?}")),
        }
    }

    /// The same with what others said passed through `each`, and with as much of it as a person reads.
    pub(super) fn map_texts(self, each: impl Fn(&str) -> String) -> Self {
        let each = |text: &str| each(text).chars().take(SHOWN_CHARS_MAX).collect::<String>();
        match self {
            Self::OtherName(names) => {
                let more = names.len().checked_sub(NAMES_MAX).filter(|more| *more > 0).map(|more| format!("{more} more"));
                Self::OtherName(names.iter().take(NAMES_MAX).map(|name| each(name)).chain(more).collect())
            }
            Self::Certificate(fault) => Self::Certificate(each(&fault)),
            Self::Protocol(fault) => Self::Protocol(each(&fault)),
            Self::NotPinned | Self::WithoutKey | Self::Expired | Self::NotYetValid | Self::UnknownIssuer => self,
        }
    }
}

/// A name out of `DnsName("pve1")` or `IpAddress(10.0.0.1)`, as rustls lists them.
fn strip_name_kind(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"').to_owned()
}

/// Why nobody can be trusted.
#[derive(Debug, Error)]
pub enum TrustError {
    /// There is no pin.
    #[error("no fingerprint is given; take it from `pvenode cert info` on the node")]
    NoFingerprint,
    /// The file cannot be read.
    #[error("the file of authorities `{}` {}", path.display(), describe_pem_error(source))]
    CaFile {
        /// Where it was looked for.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// The file has no certificate in it, or one that is none.
    #[error("the file of authorities `{}` holds no certificate that can be used; on a node it is /etc/pve/pve-root-ca.pem", .0.display())]
    NoAuthority(PathBuf),
    /// The file that a variable names for the whole system cannot be read.
    #[error("the file of authorities `{}`, which {SYSTEM_FILE_VARIABLE} names, cannot be read ({source}); correct the variable, or unset it", path.display())]
    SystemFile {
        /// Where it was looked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system trusts nobody.
    #[error(
        "this machine has no authorities that could be trusted ({0}); install its package of them (`ca-certificates`), or write `ca` or `fingerprints`"
    )]
    NoSystemAuthority(rustls::Error),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up on this machine ({0}); try another build of this program, and report it")]
    Setup(#[from] rustls::Error),
    /// The verifier cannot be set up.
    #[error("certificates cannot be verified with what is trusted here ({0}); look at the file of authorities, or pin a fingerprint")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

/// What is wrong with a file of authorities, and what to do.
fn describe_pem_error(error: &pem::Error) -> String {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    match error {
        pem::Error::Io(error) if error.kind() == NotFound => {
            "is not there; copy it from a node, where it is /etc/pve/pve-root-ca.pem, or correct the path".to_owned()
        }
        pem::Error::Io(error) if error.kind() == PermissionDenied => {
            "may not be read by this user; let it be read, there is nothing secret in it".to_owned()
        }
        pem::Error::Io(error) => format!("cannot be read ({error}); name a file that holds certificates in PEM form"),
        other => format!("is not in PEM form ({other}); copy it anew from a node, where it is /etc/pve/pve-root-ca.pem"),
    }
}

/// The TLS side of a client that trusts as `trust` says.
pub(super) fn tls_config(trust: &Trust, watch: &EndpointMonitor) -> Result<ClientConfig, TrustError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = RecordingVerifier { rule: trust_rule(trust, &provider)?, provider: provider.clone(), monitor: watch.clone() };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    // "Dangerous" is rustls's word for a verifier of one's own; ours verifies, and delegates where there is a chain.
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

fn trust_rule(trust: &Trust, provider: &Arc<CryptoProvider>) -> Result<TrustRule, TrustError> {
    match trust {
        Trust::System => {
            check_system_file(std::env::var_os(SYSTEM_FILE_VARIABLE).as_deref())?;
            let verifier = rustls_platform_verifier::Verifier::new(provider.clone()).map_err(TrustError::NoSystemAuthority)?;
            Ok(TrustRule::Chain(Arc::new(verifier)))
        }
        Trust::CaFile(path) => {
            let read = || CertificateDer::pem_slice_iter(&read_bounded(path).map_err(pem::Error::Io)?).collect::<Result<Vec<_>, _>>();
            let certificates = read().map_err(|source| TrustError::CaFile { path: path.clone(), source })?;
            let mut roots = RootCertStore::empty();
            let (added, _) = roots.add_parsable_certificates(certificates);
            if added == 0 {
                return Err(TrustError::NoAuthority(path.clone()));
            }
            Ok(TrustRule::Chain(WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone()).build()?))
        }
        Trust::Fingerprints(pins) if pins.is_empty() => Err(TrustError::NoFingerprint),
        Trust::Fingerprints(pins) => Ok(TrustRule::Pinned(pins.clone())),
    }
}

/// The variable that names another file of authorities for the whole system, as OpenSSL has it.
const SYSTEM_FILE_VARIABLE: &str = "SSL_CERT_FILE";

/// All authorities of a system are some hundred KiB; what has more than this is no file of them.
const AUTHORITIES_BYTES_MAX: u64 = 16 << 20;

/// What a regular file of bounded size holds. Who opens a pipe waits for somebody to write to it, and a device may have no end.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let there = fs::metadata(path)?;
    if !there.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(AUTHORITIES_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    let is_large = bytes.len() as u64 > AUTHORITIES_BYTES_MAX;
    if is_large { Err(io::Error::other(format!("it is larger than {} MiB", AUTHORITIES_BYTES_MAX >> 20))) } else { Ok(bytes) }
}

/// What is named there is read by others, who look at nothing before.
fn check_system_file(named: Option<&OsStr>) -> Result<(), TrustError> {
    let Some(path) = named.map(PathBuf::from) else { return Ok(()) };
    read_bounded(&path).map(drop).map_err(|source| TrustError::SystemFile { path, source })
}

#[derive(Debug)]
enum TrustRule {
    Chain(Arc<dyn ServerCertVerifier>),
    Pinned(Box<[Fingerprint]>),
}

/// Verifies by its rule, and remembers what it was shown.
#[derive(Debug)]
struct RecordingVerifier {
    rule: TrustRule,
    provider: Arc<CryptoProvider>,
    monitor: EndpointMonitor,
}

impl ServerCertVerifier for RecordingVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.monitor.record_certificate(end_entity);
        let shown = Fingerprint::of_certificate(end_entity);
        match &self.rule {
            TrustRule::Chain(verifier) => verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now),
            TrustRule::Pinned(pins) if pins.contains(&shown) => Ok(ServerCertVerified::assertion()),
            TrustRule::Pinned(_) => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_fingerprints_as_proxmox_shows_them() {
        let text = Fingerprint::of_certificate(b"x").to_string();
        assert_eq!(text.len(), 95);
        assert_eq!(Fingerprint::new(&text), Some(Fingerprint::of_certificate(b"x")));
        assert_eq!(Fingerprint::new(&text.to_lowercase()), Some(Fingerprint::of_certificate(b"x")));
        for bad in ["", "AA", &text[3..], &format!("{text}:AA"), &text.replace(':', ""), &text.replacen(':', "-", 1), "+A:00"] {
            assert_eq!(Fingerprint::new(bad), None, "{bad}");
        }
    }

    #[test]
    fn refuses_empty_trust() {
        let error = |trust| tls_config(&trust, &EndpointMonitor::default()).expect_err("refused").to_string();
        assert!(error(Trust::Fingerprints(Box::new([]))).contains("pvenode cert info"));
        assert!(error(Trust::CaFile("no/such/file.pem".into())).contains("no/such/file.pem"));
        let room = tempfile::tempdir().expect("a directory");
        let path = room.path().join("empty.pem");
        std::fs::write(&path, "").expect("written");
        assert!(error(Trust::CaFile(path)).contains("holds no certificate"));
    }

    #[test]
    fn authority_file_must_be_regular_and_bounded() {
        let room = tempfile::tempdir().expect("a directory");
        let large = room.path().join("large.pem");
        std::fs::File::create(&large).and_then(|file| file.set_len(AUTHORITIES_BYTES_MAX + 1)).expect("made");
        let cases = [(Path::new("/dev/zero"), "not a regular file"), (room.path(), "not a regular file"), (&large, "larger than 16 MiB")];
        for (path, part) in cases {
            let own = tls_config(&Trust::CaFile(path.to_owned()), &EndpointMonitor::default()).expect_err("refused").to_string();
            let of_system = check_system_file(Some(path.as_os_str())).expect_err("refused").to_string();
            assert!(own.contains(part) && of_system.contains(part) && of_system.contains("SSL_CERT_FILE"), "{own}; {of_system}");
        }
        assert!(check_system_file(None).is_ok());
        std::fs::write(room.path().join("small.pem"), "x").expect("written");
        assert!(check_system_file(Some(room.path().join("small.pem").as_os_str())).is_ok(), "whether it can be used is for its reader");
    }
}
