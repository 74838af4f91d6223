//! The disks of a guest, and what ties it to its node. All of it is in the guest's config, so it costs no request.
//!
//! Must not decide whether a guest can move or grow (`plan`).

use serde::Serialize;

use super::node::read_storage_name;
use super::parse::{read_text, read_words};
use crate::artifact::INTEGER_MAX;
use crate::document::{DecodeAborted as End, Diagnostic, DocumentReader, EventSource, SeenKeys, Span, quote};
use crate::guest::{DiskKey, DiskSize, GuestKind, StorageName};

/// The disks of a guest, and what ties it to its node. Read completely or not at all. Members are sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GuestHardware {
    /// The type of its virtual CPU; `None` is the platform's default, and containers have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_type: Option<Box<str>>,
    /// Its disks and drives, sorted by key.
    pub disks: Box<[GuestDisk]>,
    /// The config keys, sorted, that give it a device, a directory or a program of its node, in effect or pending.
    pub host_devices: Box<[Box<str>]>,
    /// Its volumes that are no disks of the guest, such as the state of a TPM and detached disks, sorted by key.
    pub other_volumes: Box<[GuestVolume]>,
}

/// A disk or a drive of a guest. Members are sorted by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuestDisk {
    /// Whether it is a drive for media.
    #[serde(rename = "cdrom")]
    pub is_cdrom: bool,
    /// Its config key.
    pub key: DiskKey,
    /// Its size; `None` if the config contains none, or none that is understood.
    #[serde(rename = "size_kib", skip_serializing_if = "Option::is_none")]
    pub size: Option<DiskSize>,
    /// The storage of its volume; `None` for a path on the node and for an empty drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageName>,
    /// Its volume with the storage, a path on the node, or the word for an empty drive (`none`). Untrusted text.
    pub volume: Box<str>,
}

impl GuestDisk {
    /// Whether its volume has the data for cloud-init, by the name that Proxmox gives such a volume.
    #[must_use]
    pub fn is_cloud_init(&self) -> bool {
        let file = self.volume.rsplit([':', '/']).next().unwrap_or_default();
        let name = ["raw", "qcow2"].iter().find_map(|format| file.strip_suffix(format)?.strip_suffix('.')).unwrap_or(file);
        let owner = name.strip_suffix("cloudinit").and_then(|rest| rest.strip_prefix("vm-")?.strip_suffix('-'));
        self.is_cdrom && (name == "cloudinit" || owner.is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit())))
    }
}

/// A volume of a guest that is no disk of it. Members are sorted by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuestVolume {
    /// Its config key, such as `tpmstate0` or `unused0`.
    pub key: Box<str>,
    /// Its storage; `None` for a path on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageName>,
    /// The volume with its storage, or a path on the node. Untrusted text.
    pub volume: Box<str>,
}

const HARDWARE_KEYS: [&str; 4] = ["cpu_type", "disks", "host_devices", "other_volumes"];
const DISK_KEYS: [&str; 5] = ["cdrom", "key", "size_kib", "storage", "volume"];
const VOLUME_KEYS: [&str; 3] = ["key", "storage", "volume"];

/// The hardware as read so far. Which disks a guest can have depends on its kind, which may come later in the file.
#[derive(Default)]
pub(super) struct HardwareDraft {
    cpu_type: Option<Box<str>>,
    disks: Vec<DiskDraft>,
    host_devices: Vec<Box<str>>,
    other_volumes: Vec<DiskDraft>,
}

#[derive(Default)]
struct DiskDraft {
    key: Option<(Box<str>, Span)>,
    storage: Option<StorageName>,
    volume: Option<Box<str>>,
    size: Option<DiskSize>,
    is_cdrom: bool,
}

pub(super) fn read_hardware<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<HardwareDraft>, End> {
    let mut draft = HardwareDraft::default();
    let seen = reader.read_fields("`hardware`", &HARDWARE_KEYS, |reader, key, _| match key {
        0 => read_text(reader, "`cpu_type`").map(|text| draft.cpu_type = text),
        1 => reader.read_items("`disks`", |reader| read_disk(reader).map(|own| draft.disks.extend(own))).map(|_| ()),
        2 => read_words(reader, "`host_devices`").map(|keys| draft.host_devices = keys.unwrap_or_default()),
        _ => reader.read_items("`other_volumes`", |reader| read_volume(reader).map(|own| draft.other_volumes.extend(own))).map(|_| ()),
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.require_keys(&seen, "`hardware`", &HARDWARE_KEYS, &[1, 2, 3])?;
    Ok(Some(draft))
}

fn read_disk<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<DiskDraft>, End> {
    let mut disk = DiskDraft::default();
    let seen = reader.read_fields("a disk", &DISK_KEYS, |reader, key, _| match key {
        0 => reader.read_flag("`cdrom`").map(|flag| disk.is_cdrom = flag == Some(true)),
        2 => {
            reader.read_integer("`size_kib`", 1, INTEGER_MAX).map(|number| disk.size = number.and_then(|(kib, _)| DiskSize::from_kib(kib)))
        }
        key => read_volume_member(reader, &mut disk, DISK_KEYS.get(key).copied()),
    })?;
    finish_volume(reader, seen.as_ref(), "a disk", &DISK_KEYS, &[0, 1, 4]).map(|_| seen.map(|_| disk))
}

fn read_volume<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<DiskDraft>, End> {
    let mut volume = DiskDraft::default();
    let seen = reader
        .read_fields("a volume", &VOLUME_KEYS, |reader, key, _| read_volume_member(reader, &mut volume, VOLUME_KEYS.get(key).copied()))?;
    finish_volume(reader, seen.as_ref(), "a volume", &VOLUME_KEYS, &[0, 2]).map(|_| seen.map(|_| volume))
}

/// Reads a member that disks and other volumes have in common.
fn read_volume_member<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    volume: &mut DiskDraft,
    key: Option<&str>,
) -> Result<(), End> {
    match key {
        Some("key") => volume.key = reader.read_text("`key`")?.map(|(text, span)| (text.into(), span)),
        Some("storage") => volume.storage = read_storage_name(reader, "`storage`")?,
        _ => volume.volume = read_text(reader, "`volume`")?,
    }
    Ok(())
}

fn finish_volume<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    seen: Option<&SeenKeys>,
    what: &str,
    keys: &[&str],
    required: &[usize],
) -> Result<(), End> {
    seen.map_or(Ok(()), |seen| reader.require_keys(seen, what, keys, required))
}

impl HardwareDraft {
    /// Checks the disks against the kind of the guest, and that no key is given twice.
    pub(super) fn into_hardware<'t, S: EventSource<'t>>(
        mut self,
        kind: GuestKind,
        reader: &mut DocumentReader<'t, S>,
    ) -> Result<GuestHardware, End> {
        let mut disks = Vec::with_capacity(self.disks.len());
        for disk in sort_by_key(reader, self.disks)? {
            let (Some((key, span)), Some(volume)) = (disk.key, disk.volume) else { continue };
            match DiskKey::new(kind, &key) {
                Some(key) => disks.push(GuestDisk { is_cdrom: disk.is_cdrom, key, size: disk.size, storage: disk.storage, volume }),
                None => reader.report(Diagnostic::new(span, format!("{} is not a disk of a {kind} guest", quote(&key))))?,
            }
        }
        let others = sort_by_key(reader, self.other_volumes)?.into_iter();
        let others = others.filter_map(|own| Some(GuestVolume { key: own.key?.0, storage: own.storage, volume: own.volume? }));
        self.host_devices.sort_unstable();
        self.host_devices.dedup();
        Ok(GuestHardware {
            cpu_type: self.cpu_type,
            disks: disks.into(),
            host_devices: self.host_devices.into(),
            other_volumes: others.collect(),
        })
    }
}

fn sort_by_key<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, mut list: Vec<DiskDraft>) -> Result<Vec<DiskDraft>, End> {
    list.sort_by(|left, right| left.key.cmp(&right.key));
    for pair in list.windows(2) {
        if let [DiskDraft { key: Some((first, first_span)), .. }, DiskDraft { key: Some((second, span)), .. }] = pair
            && first == second
        {
            let fault = Diagnostic::new(*span, format!("{} is listed twice", quote(second)));
            reader.report(fault.with_related(*first_span, "first listed here"))?;
        }
    }
    Ok(list)
}
