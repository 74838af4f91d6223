//! Planted bugs of the changes beyond config and run-state.

use converger_core::action::{Change, MigrationMode};
use converger_core::apply::{EnvResponse, IdState, LiveConfig, Operation};
use converger_core::guest::{DiskSize, GuestIdentity, SnapshotName};
use converger_core::observe::{GuestSnapshot, SnapshotTree};

use super::super::requests::{LAST_SNAPSHOT, OLD_SNAPSHOT};
use super::PlantedBug;

/// Changes what is sent.
pub(super) fn corrupt_change(bug: PlantedBug, change: &mut Change) {
    let named = |name: &str| SnapshotName::new(name).unwrap_or_else(|| panic!("a name"));
    match (bug, change) {
        (PlantedBug::DeleteOtherSnapshot, Change::SnapshotDelete(snapshot)) => snapshot.name = named(LAST_SNAPSHOT),
        (PlantedBug::RollBackFurther, Change::SnapshotRollback(rollback)) => {
            let is_old = rollback.snapshot.name.as_str() == OLD_SNAPSHOT;
            rollback.snapshot.name = named(if is_old { LAST_SNAPSHOT } else { OLD_SNAPSHOT });
        }
        (PlantedBug::GrowMore, Change::DiskGrow(growth)) => {
            growth.after = DiskSize::from_kib(growth.after.kib() + growth.before.kib()).unwrap_or(growth.after);
        }
        (PlantedBug::MigrateStopped, Change::Migrate(migration)) if migration.mode == MigrationMode::Online => {
            migration.mode = MigrationMode::Offline;
        }
        _ => {}
    }
}

/// Changes what was read. `has_sent`: the change was sent before.
pub(super) fn buggy_reading(bug: PlantedBug, operation: &Operation, answer: EnvResponse, has_sent: bool) -> EnvResponse {
    match (bug, answer) {
        (PlantedBug::TakeTakenId, EnvResponse::IdState(_)) => EnvResponse::IdState(IdState::Free),
        (PlantedBug::BelieveTask, EnvResponse::Snapshots(tree)) if has_sent => EnvResponse::Snapshots(with_promise(operation, tree)),
        (PlantedBug::BelieveTask, EnvResponse::Config(mut config)) if has_sent => {
            promise_config(operation, &mut config);
            EnvResponse::Config(config)
        }
        (bug, EnvResponse::Snapshots(mut tree)) if !has_sent => {
            corrupt_snapshots(bug, operation, &mut tree);
            EnvResponse::Snapshots(tree)
        }
        (bug, EnvResponse::Config(mut config)) if !has_sent => {
            corrupt_config(bug, operation, &mut config);
            EnvResponse::Config(config)
        }
        (_, other) => other,
    }
}

fn corrupt_snapshots(bug: PlantedBug, operation: &Operation, tree: &mut SnapshotTree) {
    let planned = match &operation.step.change {
        Change::SnapshotDelete(snapshot) => Some(&**snapshot),
        Change::SnapshotRollback(rollback) => Some(&rollback.snapshot),
        _ => None,
    };
    match (bug, &operation.step.change) {
        (PlantedBug::IgnoreSnapshotTime, _) => {
            let mut list = tree.list.to_vec();
            for own in list.iter_mut().filter(|own| planned.is_some_and(|planned| *own.name == *planned.name.as_str())) {
                own.made_at = planned.map(|planned| planned.made_at);
            }
            tree.list = list.into();
        }
        (PlantedBug::OverwriteSnapshot, Change::SnapshotCreate(new)) => {
            tree.list = tree.list.iter().filter(|own| *own.name != *new.name.as_str()).cloned().collect();
        }
        _ => {}
    }
}

fn corrupt_config(bug: PlantedBug, operation: &Operation, config: &mut LiveConfig) {
    match (bug, &operation.step.change) {
        (PlantedBug::IgnoreSource, Change::Clone(clone)) => {
            let source = &clone.source;
            (config.name, config.identity, config.template) = (source.name.clone(), source.identity.clone(), source.template);
            config.digest = Some(source.digest.clone());
        }
        (PlantedBug::GrowOtherDisk, Change::DiskGrow(growth)) => {
            for disk in config.disks.iter_mut().filter(|disk| disk.key == growth.disk) {
                (disk.volume, disk.size) = (growth.volume.clone().unwrap_or_else(|| disk.volume.clone()), Some(growth.before));
            }
        }
        (PlantedBug::MigrateUnknownGuest, Change::Migrate(_)) | (PlantedBug::ProvisionOtherGuest, Change::Provision(_)) => {
            config.name = operation.guest.name.clone();
            config.identity = operation.guest.identity.clone().unwrap_or_else(|| config.identity.clone());
        }
        _ => {}
    }
}

/// The snapshots as the change promises them.
fn with_promise(operation: &Operation, mut tree: SnapshotTree) -> SnapshotTree {
    match &operation.step.change {
        Change::SnapshotCreate(new) => {
            let made =
                GuestSnapshot { name: new.name.as_str().into(), made_at: Some(1), ram: new.ram, parent: None, state: None, cpu: None };
            let others = tree.list.iter().filter(|own| *own.name != *new.name.as_str()).cloned();
            tree.list = others.chain([made]).collect();
        }
        Change::SnapshotDelete(snapshot) => {
            tree.list = tree.list.iter().filter(|own| *own.name != *snapshot.name.as_str()).cloned().collect();
        }
        Change::SnapshotRollback(rollback) => tree.current = Some(rollback.snapshot.name.as_str().into()),
        _ => {}
    }
    tree
}

/// The config as the change promises it.
fn promise_config(operation: &Operation, config: &mut LiveConfig) {
    match &operation.step.change {
        Change::DiskGrow(growth) => {
            for disk in config.disks.iter_mut().filter(|disk| disk.key == growth.disk) {
                disk.size = Some(growth.after);
            }
        }
        Change::Clone(clone) => {
            (config.name, config.lock) = (clone.name.as_str().into(), None);
            if config.identity == clone.source.identity {
                config.identity = GuestIdentity::Qemu { uuid: Some("00000000-0000-4000-8000-000000000000".into()), ctime: None };
            }
        }
        _ => {}
    }
}
