//! What a new guest gets in its first and only config write: managed fields, and attributes outside their table.
//!
//! Must not depend on what was observed or how the write is sent.

use serde::de::Error as _;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::desired::{self, DesiredSetting, SettingsRow};
use crate::guest::{DayOne, GuestKind, SecretReference};
use crate::normalize::{Field, FieldValue, WordSet};

/// The attributes of a new guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provisioning {
    /// Attributes outside the table of fields. They are not compared again later.
    pub attributes: DayOne,
    /// Managed fields, in field order.
    pub fields: Box<[DesiredSetting]>,
    /// The kind of the guest.
    pub kind: GuestKind,
    /// Where the password of the user is stored that cloud-init makes.
    pub password: Option<SecretReference>,
}

impl Provisioning {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.attributes.is_empty() && self.fields.is_empty() && self.password.is_none()
    }

    /// The names of the parameters that only cloud-init puts into effect, sorted. Containers need none: Proxmox configures them itself.
    #[must_use]
    pub fn cloud_init_parameters(&self) -> Vec<&'static str> {
        if self.kind == GuestKind::Lxc {
            return Vec::new();
        }
        let of_hardware = ["bridge", "cpu", "mac", "vlan"];
        let attributes = self.attributes.entries().into_iter().map(|(name, _)| name).filter(|name| !of_hardware.contains(name));
        let mut names: Vec<&str> = attributes.chain(self.password.is_some().then_some("password")).collect();
        names.sort_unstable();
        names
    }

    /// The tags that the guest has afterwards, if they are written.
    #[must_use]
    pub fn tags(&self) -> Option<&WordSet> {
        self.fields.iter().find_map(|setting| match (setting.field, &setting.wanted) {
            (Field::Tags, Some(FieldValue::Tags(tags))) => Some(tags),
            _ => None,
        })
    }
}

impl Serialize for Provisioning {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let entries: std::collections::BTreeMap<_, _> = self.attributes.entries().into_iter().collect();
        if !entries.is_empty() {
            map.serialize_entry("attributes", &entries)?;
        }
        if !self.fields.is_empty() {
            map.serialize_entry("fields", &SettingsRow(&self.fields))?;
        }
        map.serialize_entry("kind", &self.kind)?;
        if let Some(password) = &self.password {
            map.serialize_entry("password", password)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Provisioning {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct ProvisioningRow {
            #[serde(default)]
            attributes: std::collections::BTreeMap<Box<str>, Box<str>>,
            #[serde(default)]
            fields: serde_json::Map<String, serde_json::Value>,
            kind: Box<str>,
            password: Option<SecretReference>,
        }
        let row = ProvisioningRow::deserialize(deserializer)?;
        let kind = GuestKind::ALL.into_iter().find(|kind| kind.word() == &*row.kind);
        let kind = kind.ok_or_else(|| D::Error::custom("not a kind of guest"))?;
        let mut entries = row.attributes.iter();
        let attributes = entries.try_fold(DayOne::default(), |attributes, (name, text)| attributes.with(name, text));
        let attributes = attributes.ok_or_else(|| D::Error::custom("not attributes of a new guest"))?;
        let fields = match row.fields.is_empty() {
            true => Box::default(),
            false => desired::parse_normal_settings(kind, &row.fields).map_err(D::Error::custom)?,
        };
        Ok(Self { attributes, fields, kind, password: row.password })
    }
}
