//! The certificates of a lab: its own certificate authority, like that of a cluster, one leaf for
//! all nodes, and the defective leaves that faults present instead.
//!
//! Must not depend on sockets.

use std::fmt::Write as _;
use std::net::IpAddr;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

use crate::wire::TlsIdentity;

/// The name in a certificate for another host. Nobody can own it (RFC 2606).
const OTHER_NAME: &str = "other.invalid";

/// The certificates of a lab and their keys.
pub struct LabCertificates {
    own_leaf: LeafCertificate,
    authority_pem: String,
    authority_key: KeyPair,
    names: Vec<String>,
    pem: String,
}

/// A certificate and its key.
pub(super) struct LeafCertificate {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key: PrivateKeyDer<'static>,
}

/// A certificate that cannot be created or parsed.
#[derive(Debug)]
pub struct CertificateError(String);

impl std::fmt::Display for CertificateError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for CertificateError {}

fn certificate_error(error: impl std::fmt::Display) -> CertificateError {
    CertificateError(error.to_string())
}

impl LabCertificates {
    /// Creates certificates for these names and for the local machine.
    ///
    /// # Errors
    /// A name that a certificate cannot contain.
    pub fn new<'n>(names: impl Iterator<Item = &'n str>, address: IpAddr) -> Result<Self, CertificateError> {
        let authority_key = KeyPair::generate().map_err(certificate_error)?;
        let authority = CertifiedIssuer::self_signed(authority_params()?, &authority_key).map_err(certificate_error)?;
        let names = all_names(names, address);
        let key = KeyPair::generate().map_err(certificate_error)?;
        let leaf = leaf_params(&names)?.signed_by(&key, &authority).map_err(certificate_error)?;
        let comment = format!("{NAMES}{}\n", names.join(" "));
        let pem = [comment, leaf.pem(), authority.pem(), key.serialize_pem(), authority_key.serialize_pem()].concat();
        Self::from_pem(&pem)
    }

    /// Loads saved certificates: leaf, authority and the keys of both.
    ///
    /// # Errors
    /// One of the four is missing.
    pub fn from_pem(pem: &str) -> Result<Self, CertificateError> {
        let certificates: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(certificate_error)?;
        let keys: Vec<PrivateKeyDer<'static>> =
            PrivateKeyDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(certificate_error)?;
        let ([certificate, _], [key, authority_key]) = (certificates.as_slice(), keys.as_slice()) else {
            return Err(certificate_error("there must be two certificates, the lab's and its authority's, and then the key of each"));
        };
        let names = pem.lines().find_map(|line| line.strip_prefix(NAMES)).unwrap_or("localhost");
        Ok(Self {
            own_leaf: LeafCertificate { certificate: certificate.clone(), key: key.clone_key() },
            authority_pem: second_certificate(pem).to_owned(),
            authority_key: KeyPair::try_from(authority_key).map_err(certificate_error)?,
            names: names.split(' ').map(str::to_owned).collect(),
            pem: pem.to_owned(),
        })
    }

    /// Leaf, authority and private keys, for saving.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The certificate of the authority, for clients that check names.
    #[must_use]
    pub fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    /// The names and addresses that it is valid for.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The leaf's SHA-256 fingerprint in the format of Proxmox and OpenSSL: `AB:CD:…`.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let digest = Sha256::digest(&self.own_leaf.certificate);
        let mut text = String::new();
        for (index, byte) in digest.iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            // Writing to a string cannot fail.
            let _ = write!(text, "{colon}{byte:02X}");
        }
        text
    }

    /// The leaf that a node presents with this identity; `None` if it presents no certificate. Only the stated property is wrong: an
    /// expired certificate has the right names, authority and key.
    pub(super) fn leaf_for(&self, tls_identity: TlsIdentity) -> Result<Option<LeafCertificate>, CertificateError> {
        let issuer = Issuer::new(authority_params()?, &self.authority_key);
        let own_key = || KeyPair::try_from(&self.own_leaf.key).map_err(certificate_error);
        let leaf = match tls_identity {
            TlsIdentity::Noise => return Ok(None),
            TlsIdentity::Own => {
                return Ok(Some(LeafCertificate { certificate: self.own_leaf.certificate.clone(), key: self.own_leaf.key.clone_key() }));
            }
            TlsIdentity::Expired => {
                let mut params = leaf_params(&self.names)?;
                (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
                sign_leaf(params, own_key()?, &issuer)?
            }
            TlsIdentity::OtherName => sign_leaf(leaf_params(&[OTHER_NAME.to_owned()])?, own_key()?, &issuer)?,
            TlsIdentity::OtherKey => {
                let other = Issuer::new(authority_params()?, KeyPair::generate().map_err(certificate_error)?);
                sign_leaf(leaf_params(&self.names)?, KeyPair::generate().map_err(certificate_error)?, &other)?
            }
        };
        Ok(Some(leaf))
    }
}

/// The line before the names in a saved identity.
const NAMES: &str = "# The certificate of a lab, for: ";

fn all_names<'n>(names: impl Iterator<Item = &'n str>, address: IpAddr) -> Vec<String> {
    let mut all: Vec<String> = names.map(str::to_owned).collect();
    all.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    all.push(address.to_string());
    all.sort();
    all.dedup();
    all
}

fn authority_params() -> Result<CertificateParams, CertificateError> {
    let mut params = CertificateParams::new(Vec::new()).map_err(certificate_error)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "Proxmox lab authority");
    // Strict clients, such as Python since 3.13, require the key usage of the authority and the authority key id of a leaf.
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
}

fn leaf_params(names: &[String]) -> Result<CertificateParams, CertificateError> {
    let mut params = CertificateParams::new(names.to_vec()).map_err(certificate_error)?;
    params.distinguished_name.push(DnType::CommonName, "Proxmox lab");
    params.use_authority_key_identifier_extension = true;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

fn sign_leaf(
    params: CertificateParams,
    key: KeyPair,
    issuer: &Issuer<'_, impl rcgen::SigningKey>,
) -> Result<LeafCertificate, CertificateError> {
    let certificate: Certificate = params.signed_by(&key, issuer).map_err(certificate_error)?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(certificate_error)?;
    Ok(LeafCertificate { certificate: certificate.der().clone(), key })
}

fn second_certificate(pem: &str) -> &str {
    const END: &str = "-----END CERTIFICATE-----\n";
    let begin = pem.match_indices("-----BEGIN CERTIFICATE-----").nth(1).map_or(0, |(index, _)| index);
    let rest = pem.get(begin..).unwrap_or_default();
    let end = rest.find(END).map_or(rest.len(), |index| index + END.len());
    rest.get(..end).unwrap_or_default()
}
