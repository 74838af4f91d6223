//! TLS trust: the system's authorities, the authorities in a file, or certificates pinned by their SHA-256 fingerprint.
//!
//! Verification is never switched off. A pinned certificate is compared by its fingerprint, and the handshake must be signed with its key.
//! Its name and dates do not matter then, because a person checked that very certificate (`docs/decisions/0008-trust.md`).

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

/// Limits for the names of a certificate in messages: their number, and the length of each, which is the longest DNS name.
const NAMES_MAX: usize = 10;
const SHOWN_CHARS_MAX: usize = 253;

/// The SHA-256 of a certificate, as Proxmox shows it: pairs of hexadecimal digits, separated by colons.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Parses a fingerprint; upper and lower case are equal.
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

/// What to trust at an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The system's authorities.
    System,
    /// The authorities in this PEM file, and no others.
    CaFile(PathBuf),
    /// These certificates, and no others. There can be several, so that one can be renewed.
    Fingerprints(Box<[Fingerprint]>),
}

/// Why a server was not trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustFailure {
    /// Its certificate matches no pinned fingerprint.
    NotPinned,
    /// It presents a pinned certificate but does not have its private key.
    WithoutKey,
    /// Its certificate has expired.
    Expired,
    /// Its certificate is not valid yet.
    NotYetValid,
    /// Its certificate is for these other names; empty if they are unknown.
    OtherName(Box<[String]>),
    /// Its certificate is issued by an authority that is not trusted.
    UnknownIssuer,
    /// Its certificate has another fault.
    Certificate(String),
    /// It does not speak TLS, or no version that is supported here.
    Protocol(String),
}

impl TrustFailure {
    /// Converts a TLS error, given the trust settings of the endpoint.
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

    /// Passes texts of the server through `each` and shortens them to a readable length.
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

/// Extracts the name from `DnsName("pve1")` or `IpAddress(10.0.0.1)`, the forms in which rustls lists names.
fn strip_name_kind(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"').to_owned()
}

/// Why the trust settings cannot be used.
#[derive(Debug, Error)]
pub enum TrustError {
    /// No fingerprint is pinned.
    #[error("no fingerprint is configured; take it from `pvenode cert info` on the node")]
    NoFingerprint,
    /// The CA file cannot be read.
    #[error("the CA file `{}` {}", path.display(), describe_pem_error(source))]
    CaFile {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// The CA file contains no usable certificate.
    #[error("the CA file `{}` holds no usable certificate; copy /etc/pve/pve-root-ca.pem from a node", .0.display())]
    NoAuthority(PathBuf),
    /// The CA file that a variable names for the whole system cannot be read.
    #[error("the CA file `{}` from {SYSTEM_FILE_VARIABLE} cannot be read ({source}); correct the variable or unset it", path.display())]
    SystemFile {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The system has no authorities.
    #[error("this machine has no trusted authorities ({0}); install the package `ca-certificates`, or set `ca` or `fingerprints`")]
    NoSystemAuthority(rustls::Error),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up on this machine ({0}); try another build of this program and report a bug")]
    Setup(#[from] rustls::Error),
    /// The verifier cannot be set up.
    #[error("the trusted authorities cannot be used to verify certificates ({0}); check the CA file or pin a fingerprint")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

/// What is wrong with a CA file, and what to do.
fn describe_pem_error(error: &pem::Error) -> String {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    match error {
        pem::Error::Io(error) if error.kind() == NotFound => {
            "does not exist; copy /etc/pve/pve-root-ca.pem from a node, or correct the path".to_owned()
        }
        pem::Error::Io(error) if error.kind() == PermissionDenied => {
            "is not readable for this user; allow it, the file contains nothing secret".to_owned()
        }
        pem::Error::Io(error) => format!("cannot be read ({error}); use a file with certificates in PEM format"),
        other => format!("is not in PEM format ({other}); copy /etc/pve/pve-root-ca.pem from a node again"),
    }
}

/// The TLS configuration of a client with these trust settings.
pub(super) fn tls_config(trust: &Trust, watch: &EndpointMonitor) -> Result<ClientConfig, TrustError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = RecordingVerifier { rule: trust_rule(trust, &provider)?, provider: provider.clone(), monitor: watch.clone() };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    // rustls calls every custom verifier "dangerous". Ours verifies, and delegates the verification of chains.
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

/// The variable that names another CA file for the whole system, as for OpenSSL.
const SYSTEM_FILE_VARIABLE: &str = "SSL_CERT_FILE";

/// All authorities of a system are a few hundred KiB; a larger file than this is not a CA file.
const AUTHORITIES_BYTES_MAX: u64 = 16 << 20;

/// Reads a regular file of bounded size. Opening a pipe would block until a process writes to it, and a device may be endless.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(AUTHORITIES_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    let is_large = bytes.len() as u64 > AUTHORITIES_BYTES_MAX;
    if is_large { Err(io::Error::other(format!("it is larger than {} MiB", AUTHORITIES_BYTES_MAX >> 20))) } else { Ok(bytes) }
}

/// The platform verifier reads the file that the variable names without such checks, so it is checked here first.
fn check_system_file(named: Option<&OsStr>) -> Result<(), TrustError> {
    let Some(path) = named.map(PathBuf::from) else { return Ok(()) };
    read_bounded(&path).map(drop).map_err(|source| TrustError::SystemFile { path, source })
}

#[derive(Debug)]
enum TrustRule {
    Chain(Arc<dyn ServerCertVerifier>),
    Pinned(Box<[Fingerprint]>),
}

/// Verifies according to its rule and records the certificate it was shown.
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
        let fingerprint = Fingerprint::of_certificate(end_entity);
        match &self.rule {
            TrustRule::Chain(verifier) => verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now),
            TrustRule::Pinned(pins) if pins.contains(&fingerprint) => Ok(ServerCertVerified::assertion()),
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
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("empty.pem");
        std::fs::write(&path, "").expect("written");
        assert!(error(Trust::CaFile(path)).contains("holds no usable certificate"));
    }

    #[test]
    fn authority_file_must_be_regular_and_bounded() {
        let directory = tempfile::tempdir().expect("a directory");
        let large = directory.path().join("large.pem");
        std::fs::File::create(&large).and_then(|file| file.set_len(AUTHORITIES_BYTES_MAX + 1)).expect("made");
        let cases =
            [(Path::new("/dev/zero"), "not a regular file"), (directory.path(), "not a regular file"), (&large, "larger than 16 MiB")];
        for (path, part) in cases {
            let own = tls_config(&Trust::CaFile(path.to_owned()), &EndpointMonitor::default()).expect_err("refused").to_string();
            let of_system = check_system_file(Some(path.as_os_str())).expect_err("refused").to_string();
            assert!(own.contains(part) && of_system.contains(part) && of_system.contains("SSL_CERT_FILE"), "{own}; {of_system}");
        }
        assert!(check_system_file(None).is_ok());
        std::fs::write(directory.path().join("small.pem"), "x").expect("written");
        assert!(
            check_system_file(Some(directory.path().join("small.pem").as_os_str())).is_ok(),
            "the verifier decides whether the content is usable"
        );
    }
}
