//! The snapshots of a guest: the list of them, and the config that one of them contains.
//!
//! Must not decide what follows from them (the core).

use std::collections::BTreeSet;

use converger_core::artifact::INTEGER_MAX;
use converger_core::observe::{GuestSnapshot, SnapshotTree};
use serde::Deserialize;

use super::identifiers::ConfigDigest;
use super::scalar::PerlScalar;

/// The snapshots of a guest, and the config that they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSnapshots {
    /// The snapshots.
    pub tree: SnapshotTree,
    /// The digest of the guest's config, of which the snapshots are a part.
    pub digest: Option<ConfigDigest>,
}

/// The config of a guest in one of its snapshots, as far as this program uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotConfig {
    /// The CPU that the guest had when its memory was saved.
    pub running_cpu: Option<Box<str>>,
    /// The digest of the guest's whole config, of which the snapshot is a part.
    pub digest: Option<ConfigDigest>,
}

#[derive(Deserialize)]
pub(super) struct SnapshotRow<'a> {
    #[serde(borrow, default)]
    name: PerlScalar<'a>,
    #[serde(borrow, default)]
    snapstate: PerlScalar<'a>,
    #[serde(borrow, default)]
    snaptime: PerlScalar<'a>,
    #[serde(borrow, default)]
    parent: PerlScalar<'a>,
    #[serde(borrow, default)]
    vmstate: PerlScalar<'a>,
    #[serde(borrow, default)]
    digest: PerlScalar<'a>,
}

#[derive(Deserialize)]
pub(super) struct SnapshotConfigRow<'a> {
    #[serde(borrow, default)]
    runningcpu: PerlScalar<'a>,
    #[serde(borrow, default)]
    digest: PerlScalar<'a>,
}

/// Parses the list, or returns what is wrong with it: a list that lacks a snapshot must not pass for a complete one.
pub(super) fn parse_snapshots(rows: &[SnapshotRow<'_>]) -> Result<ListedSnapshots, &'static str> {
    // The entry `current` is the guest itself, not a snapshot.
    let (current, listed): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.name.is_text("current"));
    let [current] = current.as_slice() else { return Err("the list of snapshots does not contain the guest itself exactly once") };
    if current.parent.is_invalid_guard() {
        return Err("a snapshot has an invalid `parent`");
    }
    let snapshots = listed.into_iter().map(parse_snapshot).collect::<Result<Vec<_>, _>>()?;
    let names: BTreeSet<&str> = snapshots.iter().map(|snapshot| &*snapshot.name).collect();
    if names.len() != snapshots.len() {
        return Err("the list of snapshots contains a name twice");
    }
    let digest = current.digest.text().and_then(|text| ConfigDigest::new(&text));
    Ok(ListedSnapshots { tree: SnapshotTree::new(snapshots, current.parent.word()), digest })
}

fn parse_snapshot(row: &SnapshotRow<'_>) -> Result<GuestSnapshot, &'static str> {
    if [&row.snapstate, &row.parent].into_iter().any(PerlScalar::is_invalid_guard) {
        return Err("a snapshot has an invalid `snapstate` or `parent`");
    }
    let made_at = match &row.snaptime {
        PerlScalar::Absent => None,
        time => Some(time.number().filter(|seconds| *seconds <= INTEGER_MAX).ok_or("a snapshot has an invalid `snaptime`")?),
    };
    let ram = match &row.vmstate {
        PerlScalar::Absent => false,
        flag => flag.flag().ok_or("a snapshot has an invalid `vmstate`")?,
    };
    Ok(GuestSnapshot {
        cpu: None,
        made_at,
        name: row.name.word().ok_or("a snapshot has no name")?,
        parent: row.parent.word(),
        ram,
        state: row.snapstate.word(),
    })
}

/// Parses the config of a snapshot, or returns what is wrong with it.
pub(super) fn parse_snapshot_config(row: &SnapshotConfigRow<'_>) -> Result<SnapshotConfig, &'static str> {
    if row.runningcpu == PerlScalar::NotScalar {
        return Err("the config of the snapshot has an invalid `runningcpu`");
    }
    Ok(SnapshotConfig { running_cpu: row.runningcpu.word(), digest: row.digest.text().and_then(|text| ConfigDigest::new(&text)) })
}
