//! The certificate and clock that an endpoint presented, whether or not it was trusted. For messages and diagnosis only; no decision
//! depends on them.

use std::sync::{Arc, Mutex, PoisonError};

use super::certificate::{CertificateValidity, parse_validity};
use super::trust::{Fingerprint, TrustFailure};

/// A view of what an endpoint presented last.
#[derive(Clone, Debug, Default)]
pub struct EndpointMonitor(Arc<Mutex<EndpointMonitorState>>);

#[derive(Clone, Debug, Default)]
struct EndpointMonitorState {
    fingerprint: Option<Fingerprint>,
    validity: Option<CertificateValidity>,
    distrust: Option<TrustFailure>,
    date: Option<Box<str>>,
}

impl EndpointMonitor {
    /// The fingerprint of its certificate, once it presented one.
    #[must_use]
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.with_state(|seen| seen.fingerprint)
    }

    /// The `Date` header of its last response, unchanged.
    #[must_use]
    pub fn date(&self) -> Option<Box<str>> {
        self.with_state(|seen| seen.date.clone())
    }

    /// The validity period of its certificate.
    #[must_use]
    pub fn validity(&self) -> Option<CertificateValidity> {
        self.with_state(|seen| seen.validity)
    }

    /// Why the endpoint was not trusted; `None` if it was.
    #[must_use]
    pub fn distrust(&self) -> Option<TrustFailure> {
        self.with_state(|seen| seen.distrust.clone())
    }

    pub(super) fn record_certificate(&self, certificate: &[u8]) {
        self.with_state(|seen| {
            seen.fingerprint = Some(Fingerprint::of_certificate(certificate));
            seen.validity = parse_validity(certificate);
        });
    }

    pub(super) fn record_trust_failure(&self, trust_failure: TrustFailure) {
        self.with_state(|seen| seen.distrust = Some(trust_failure));
    }

    /// Records the `Date` header of a response. Public for other transports.
    pub fn record_date(&self, date: &str) {
        self.with_state(|seen| seen.date = Some(date.into()));
    }

    fn with_state<T>(&self, action: impl FnOnce(&mut EndpointMonitorState) -> T) -> T {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
