//! What an endpoint shows of itself, trusted or not: its certificate and its clock. For messages, and for people who look for what is
//! wrong; nothing is decided by it.

use std::sync::{Arc, Mutex, PoisonError};

use super::certificate::{CertificateValidity, parse_validity};
use super::trust::{Fingerprint, TrustFailure};

/// A view of what an endpoint last showed.
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
    /// The fingerprint of its certificate, once there was one.
    #[must_use]
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.with_state(|seen| seen.fingerprint)
    }

    /// The `Date` of its last answer, as it was sent.
    #[must_use]
    pub fn date(&self) -> Option<Box<str>> {
        self.with_state(|seen| seen.date.clone())
    }

    /// From when until when its certificate is valid.
    #[must_use]
    pub fn validity(&self) -> Option<CertificateValidity> {
        self.with_state(|seen| seen.validity)
    }

    /// Why it was not trusted, if it was not.
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

    pub(super) fn record_trust_failure(&self, distrust: TrustFailure) {
        self.with_state(|seen| seen.distrust = Some(distrust));
    }

    /// Takes down the `Date` of an answer, for whoever brings answers.
    pub fn record_date(&self, date: &str) {
        self.with_state(|seen| seen.date = Some(date.into()));
    }

    fn with_state<T>(&self, look: impl FnOnce(&mut EndpointMonitorState) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
