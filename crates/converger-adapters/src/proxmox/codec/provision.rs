//! The first config write of a new guest: managed fields and attributes in one request, bound to the config that was checked.
//!
//! A password is a reference until right before sending. Nothing shows it.

use std::fmt;

use converger_core::action::Provisioning;
use converger_core::guest::SecretReference;
use zeroize::Zeroizing;

use super::day_one;
use super::field::{self, FieldWrite, UnwritableChange};
use super::identifiers::{ConfigDigest, GuestPath};
use super::write_basis::WriteBasis;

/// The first config write of a new guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisionWrite {
    pub(super) guest: GuestPath,
    /// The keys to set, with their texts, sorted by key.
    pub(super) parameters: Box<[(&'static str, String)]>,
    pub(super) delete: Box<[&'static str]>,
    pub(super) digest: ConfigDigest,
    pub(super) password: Option<WritePassword>,
}

/// A password in a write.
#[derive(Clone, PartialEq, Eq)]
pub enum WritePassword {
    /// Where it is stored. The write must not be sent like this.
    Reference(SecretReference),
    /// The password itself.
    Text(Zeroizing<String>),
}

/// Never shows the password.
impl fmt::Debug for WritePassword {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reference(reference) => write!(formatter, "Reference({reference})"),
            Self::Text(_) => formatter.write_str("Text(..)"),
        }
    }
}

impl ProvisionWrite {
    /// The write for these attributes.
    ///
    /// # Errors
    /// A field or an attribute that cannot be written, or anything pending in the config of the new guest.
    pub fn new(guest: GuestPath, provisioning: &Provisioning, basis: &WriteBasis) -> Result<Self, UnwritableChange> {
        if provisioning.is_empty() {
            return Err(UnwritableChange::Nothing);
        }
        if let Some(key) = basis.first_pending() {
            return Err(UnwritableChange::ForeignPending(key.into()));
        }
        let (mut parameters, mut delete) = (Vec::new(), Vec::new());
        for setting in &provisioning.fields {
            match field::encode_field(guest.kind, setting.field, setting.wanted.as_ref(), basis.agent())? {
                FieldWrite::Set(text) => parameters.push((setting.field.word(), text)),
                FieldWrite::Delete => delete.push(setting.field.word()),
            }
        }
        let attributes = day_one::encode_day_one(guest.kind, &provisioning.attributes, basis.net0());
        parameters.extend(attributes.ok_or(UnwritableChange::NoNetworkDevice)?);
        parameters.sort_unstable_by_key(|(key, _)| *key);
        let password = provisioning.password.clone().map(WritePassword::Reference);
        Ok(Self { guest, parameters: parameters.into(), delete: delete.into(), digest: basis.digest().clone(), password })
    }

    /// Where the password is stored, if it was not read yet.
    #[must_use]
    pub fn password_reference(&self) -> Option<&SecretReference> {
        match &self.password {
            Some(WritePassword::Reference(reference)) => Some(reference),
            Some(WritePassword::Text(_)) | None => None,
        }
    }

    /// The password, once it was read.
    pub(in crate::proxmox) fn password_text(&self) -> Option<&str> {
        match &self.password {
            Some(WritePassword::Text(password)) => Some(password),
            Some(WritePassword::Reference(_)) | None => None,
        }
    }

    /// The write with the password itself.
    #[must_use]
    pub fn with_password(self, password: Zeroizing<String>) -> Self {
        Self { password: Some(WritePassword::Text(password)), ..self }
    }
}
