//! The certificate of a lab: an authority of its own, as every cluster has one, and one leaf for all nodes.

use std::fmt::Write as _;
use std::net::IpAddr;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

/// Who the nodes say that they are.
pub struct Identity {
    leaf: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    authority_pem: String,
    pem: String,
}

/// A certificate that cannot be made or read.
#[derive(Debug)]
pub struct IdentityError(String);

impl std::fmt::Display for IdentityError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for IdentityError {}

fn wrong(error: impl std::fmt::Display) -> IdentityError {
    IdentityError(error.to_string())
}

impl Identity {
    /// A new one for these names and for the own machine.
    ///
    /// # Errors
    /// A name that no certificate can hold.
    pub fn new<'n>(names: impl Iterator<Item = &'n str>, address: IpAddr) -> Result<Self, IdentityError> {
        let mut params = CertificateParams::new(Vec::new()).map_err(wrong)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Proxmox lab authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().map_err(wrong)?).map_err(wrong)?;
        let mut all: Vec<String> = names.map(str::to_owned).collect();
        all.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
        all.push(address.to_string());
        all.sort();
        all.dedup();
        let mut params = CertificateParams::new(all).map_err(wrong)?;
        params.distinguished_name.push(DnType::CommonName, "Proxmox lab");
        let key = KeyPair::generate().map_err(wrong)?;
        let leaf = params.signed_by(&key, &issuer).map_err(wrong)?;
        let pem = format!("{}{}{}", leaf.pem(), issuer.pem(), key.serialize_pem());
        Self::from_pem(&pem)
    }

    /// One that was written before: leaf, authority and key.
    ///
    /// # Errors
    /// One of the three is not there.
    pub fn from_pem(pem: &str) -> Result<Self, IdentityError> {
        let certificates: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(wrong)?;
        let [leaf, _] = certificates.as_slice() else {
            return Err(IdentityError("there must be two certificates, the lab's and its authority's".into()));
        };
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(wrong)?;
        let begin = pem.match_indices("-----BEGIN CERTIFICATE-----").nth(1).map_or(0, |(index, _)| index);
        let rest = pem.get(begin..).unwrap_or_default();
        let end = rest.find("-----END CERTIFICATE-----\n").map_or(rest.len(), |index| index + "-----END CERTIFICATE-----\n".len());
        let authority_pem = rest.get(..end).unwrap_or_default().to_owned();
        Ok(Self { leaf: leaf.clone(), key, authority_pem, pem: pem.to_owned() })
    }

    /// Leaf, authority and private key, to be kept.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The certificate of the authority, for clients that check names.
    #[must_use]
    pub fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    /// The leaf's SHA-256, as Proxmox and OpenSSL show it: `AB:CD:…`.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let digest = Sha256::digest(&self.leaf);
        let mut text = String::new();
        for (index, byte) in digest.iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            let _ = write!(text, "{colon}{byte:02X}");
        }
        text
    }

    pub(super) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.leaf.clone()]
    }

    pub(super) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }
}
