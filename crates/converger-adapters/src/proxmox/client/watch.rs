//! What an endpoint shows of itself, trusted or not: its certificate and its clock. For messages, and for people who look for what is
//! wrong; nothing is decided by it.

use std::sync::{Arc, Mutex, PoisonError};

use super::certificate::{Validity, validity};
use super::trust::{Distrust, Fingerprint};

/// A view of what an endpoint last showed.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Mutex<Seen>>);

#[derive(Clone, Debug, Default)]
struct Seen {
    fingerprint: Option<Fingerprint>,
    validity: Option<Validity>,
    distrust: Option<Distrust>,
    date: Option<Box<str>>,
}

impl Watch {
    /// The fingerprint of its certificate, once there was one.
    #[must_use]
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.seen(|seen| seen.fingerprint)
    }

    /// The `Date` of its last answer, as it was sent.
    #[must_use]
    pub fn date(&self) -> Option<Box<str>> {
        self.seen(|seen| seen.date.clone())
    }

    /// From when until when its certificate is valid.
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        self.seen(|seen| seen.validity)
    }

    /// Why it was not trusted, if it was not.
    #[must_use]
    pub fn distrust(&self) -> Option<Distrust> {
        self.seen(|seen| seen.distrust.clone())
    }

    pub(super) fn showed(&self, certificate: &[u8]) {
        self.seen(|seen| {
            seen.fingerprint = Some(Fingerprint::of(certificate));
            seen.validity = validity(certificate);
        });
    }

    pub(super) fn distrusted(&self, distrust: Distrust) {
        self.seen(|seen| seen.distrust = Some(distrust));
    }

    /// Takes down the `Date` of an answer, for whoever brings answers.
    pub fn said(&self, date: &str) {
        self.seen(|seen| seen.date = Some(date.into()));
    }

    fn seen<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
