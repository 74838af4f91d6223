//! Readings of a guest that only some intents need. Most guests have none of them, so they are kept apart from the row.

use super::{GuestDisk, GuestHardware, GuestVolume, ObservedGuest, Reading, SnapshotTree};

/// What was read of a guest beyond its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestExtras {
    /// Its disks, and what ties it to its node.
    pub hardware: Reading<GuestHardware>,
    /// Whether a replication job for it exists.
    pub replicated: Reading<bool>,
    /// Its snapshots.
    pub snapshots: Reading<SnapshotTree>,
}

impl Default for GuestExtras {
    fn default() -> Self {
        Self { hardware: Reading::Unread, replicated: Reading::Unread, snapshots: Reading::Unread }
    }
}

impl GuestExtras {
    /// The readings in the form of [`ObservedGuest::extras`]: `None` if nothing was read.
    #[must_use]
    pub fn into_option(self) -> Option<Box<Self>> {
        let has_any = self.hardware.is_read() || self.replicated.is_read() || self.snapshots.is_read();
        has_any.then(|| Box::new(self))
    }
}

impl ObservedGuest {
    fn extra<'g, T>(&'g self, part: impl FnOnce(&'g GuestExtras) -> &'g Reading<T>) -> Reading<&'g T> {
        self.extras.as_deref().map_or(Reading::Unread, |extras| part(extras).as_ref())
    }

    /// Its disks, and what ties it to its node.
    #[must_use]
    pub fn hardware(&self) -> Reading<&GuestHardware> {
        self.extra(|extras| &extras.hardware)
    }

    /// Its disks and drives, sorted by key.
    #[must_use]
    pub fn disks(&self) -> Reading<&[GuestDisk]> {
        self.hardware().map(|hardware| &*hardware.disks)
    }

    /// Its volumes that are no disks, sorted by key.
    #[must_use]
    pub fn other_volumes(&self) -> Reading<&[GuestVolume]> {
        self.hardware().map(|hardware| &*hardware.other_volumes)
    }

    /// The config keys that give it a device, a directory or a program of its node.
    #[must_use]
    pub fn host_devices(&self) -> Reading<&[Box<str>]> {
        self.hardware().map(|hardware| &*hardware.host_devices)
    }

    /// The type of its virtual CPU; `Read(None)` is the platform's default.
    #[must_use]
    pub fn cpu_type(&self) -> Reading<Option<&str>> {
        self.hardware().map(|hardware| hardware.cpu_type.as_deref())
    }

    /// Its snapshots.
    #[must_use]
    pub fn snapshots(&self) -> Reading<&SnapshotTree> {
        self.extra(|extras| &extras.snapshots)
    }

    /// Whether a replication job for it exists.
    #[must_use]
    pub fn replicated(&self) -> Reading<bool> {
        self.extra(|extras| &extras.replicated).map(|replicated| *replicated)
    }

    /// Changes its readings beyond the row.
    pub fn change_extras(&mut self, change: impl FnOnce(&mut GuestExtras)) {
        let mut extras = self.extras.take().map_or_else(GuestExtras::default, |extras| *extras);
        change(&mut extras);
        self.extras = extras.into_option();
    }
}

#[cfg(test)]
mod tests {
    use crate::artifact::Digest;
    use crate::desired::Scope;
    use crate::guest::{StorageName, Vmid};
    use crate::observe::{self, Observation, PlanView, Reading};

    const NODES: &str = r#"{"capacity":{"cpu_model":"AMD EPYC","cpus":2,"memory_available":24135602176,"memory_total":25274793984},"name":"n1","online":true,"storages":[{"active":true,"available":70848393216,"content":["images","rootdir"],"kind":"dir","name":"dir1","shared":false,"total":270553174016},{"active":false,"content":[],"kind":"nfs","name":"far","shared":true}]}"#;
    const HARDWARE: &str = r#""hardware":{"cpu_type":"host","disks":[{"cdrom":true,"key":"ide2","volume":"none"},{"cdrom":false,"key":"scsi0","size_kib":33554432,"storage":"dir1","volume":"dir1:100/vm-100-disk-0.qcow2"}],"host_devices":["args","hostpci0"],"other_volumes":[{"key":"tpmstate0","storage":"dir1","volume":"dir1:100/vm-100-disk-1.raw"}]}"#;
    const SNAPSHOTS: &str = r#""snapshots":{"current":"s2","list":[{"made_at":1794770662,"name":"s1","ram":false},{"cpu":"host,+aes","made_at":1794770687,"name":"s2","parent":"s1","ram":true,"state":"prepare"}]}"#;

    fn observation_json(nodes: &str, hardware: &str, replicated: &str, snapshots: &str) -> String {
        let part = |text: &str| if text.is_empty() { String::new() } else { format!("{text},") };
        let row = format!(
            r#"{{{}"kind":"qemu","name":"a","node":"n1",{}{}"status":"stopped","vmid":100}}"#,
            part(hardware),
            part(replicated),
            part(snapshots)
        );
        format!(
            r#"{{"complete":true,"environment":"lab","guests":[{row}],"nodes":[{nodes}],"quorate":true,"schema":"converger.observation/1"}}"#
        )
    }

    fn parse(text: &str) -> Observation {
        observe::parse(text.as_bytes()).unwrap_or_else(|faults| panic!("{text}\n{faults:#?}"))
    }

    fn plan_digest(observation: &Observation, ids: &[u64]) -> Digest {
        let scope = Scope::new(ids.iter().filter_map(|id| Vmid::new(*id)).collect());
        Digest::of_value(&PlanView(&observation.clone().into_scoped(&scope))).expect("serialises")
    }

    const PLAIN_NODE: &str = r#"{"name":"n1","online":true}"#;

    #[test]
    fn readings_for_intents_survive_a_recording() {
        let text = observation_json(NODES, HARDWARE, r#""replicated":true"#, SNAPSHOTS);
        let observation = parse(&text);
        assert_eq!(serde_json::to_string(&observation).expect("serialises"), text);
        let scoped = observation.into_scoped(&Scope::new(vec![Vmid::new(100).expect("an id")]));
        assert_eq!(serde_json::to_string(&*scoped).expect("serialises"), text, "a scope keeps what was read of its guests");
        let row = &scoped.guests[0];
        assert_eq!(row.disks().into_option().map(<[_]>::len), Some(2));
        assert_eq!(row.host_devices().into_option().map(|keys| keys.iter().map(|key| &**key).collect()), Some(vec!["args", "hostpci0"]));
        assert_eq!((row.cpu_type(), row.replicated()), (Reading::Read(Some("host")), Reading::Read(true)));
        let snapshot = row.snapshots().into_option().and_then(|tree| tree.find("s2")).expect("listed");
        assert_eq!((snapshot.ram, snapshot.state.as_deref(), snapshot.cpu.as_deref()), (true, Some("prepare"), Some("host,+aes")));
        let storage = |name: &str| scoped.nodes[0].storage(&StorageName::new(name).expect("a name"));
        assert!(matches!(storage("dir1"), Reading::Read(Some(own)) if own.available == Some(70_848_393_216)));
        assert_eq!(storage("other"), Reading::Read(None));
    }

    #[test]
    fn g2_unread_is_not_empty() {
        let unread = parse(&observation_json(PLAIN_NODE, "", "", ""));
        let empty = parse(&observation_json(
            r#"{"name":"n1","online":true,"storages":[]}"#,
            r#""hardware":{"disks":[],"host_devices":[],"other_volumes":[]}"#,
            r#""replicated":false"#,
            r#""snapshots":{"list":[]}"#,
        ));
        let (row, other) = (&unread.guests[0], &empty.guests[0]);
        assert_eq!(row.extras, None);
        assert!(!row.snapshots().is_read() && !row.disks().is_read() && !row.replicated().is_read() && !row.cpu_type().is_read());
        assert!(other.snapshots().is_read() && other.disks().is_read() && other.cpu_type() == Reading::Read(None));
        assert_eq!(other.replicated(), Reading::Read(false));
        assert_ne!(unread.nodes, empty.nodes);
        assert_ne!(plan_digest(&unread, &[100]), plan_digest(&empty, &[100]));
    }

    #[test]
    fn digest_covers_every_reading_for_intents() {
        let plain = ["", "", ""];
        let digest = |nodes: &str, [hardware, replicated, snapshots]: [&str; 3]| {
            plan_digest(&parse(&observation_json(nodes, hardware, replicated, snapshots)), &[100])
        };
        let without = digest(PLAIN_NODE, plain);
        for (nodes, parts) in [
            (NODES, plain),
            (PLAIN_NODE, [HARDWARE, "", ""]),
            (PLAIN_NODE, ["", r#""replicated":false"#, ""]),
            (PLAIN_NODE, ["", "", SNAPSHOTS]),
        ] {
            assert_ne!(digest(nodes, parts), without, "{nodes} {parts:?}");
        }
        let with_target = |target: &str| plan_digest(&parse(&observation_json(&format!("{PLAIN_NODE},{target}"), "", "", "")), &[100]);
        assert_eq!(with_target(r#"{"name":"n2","online":true}"#), without, "nothing was read of a node without guests");
        let free =
            |bytes: u64| format!(r#"{{"capacity":{{"cpus":2,"memory_available":{bytes},"memory_total":9}},"name":"n2","online":true}}"#);
        assert_ne!(with_target(&free(5)), with_target(&free(6)), "a plan depends on the target of a migration");
    }

    #[test]
    fn order_of_members_and_rows_does_not_matter() {
        let sorted = observation_json(PLAIN_NODE, HARDWARE, "", SNAPSHOTS);
        let shuffled = sorted
            .replace(r#""kind":"qemu","name""#, r#""name""#)
            .replace(r#""vmid":100"#, r#""vmid":100,"kind":"qemu""#)
            .replace(r#"{"cdrom":true,"key":"ide2","volume":"none"},"#, "")
            .replace(r#"disk-0.qcow2"}"#, r#"disk-0.qcow2"},{"volume":"none","key":"ide2","cdrom":true}"#)
            .replace(r#"["args","hostpci0"]"#, r#"["hostpci0","args"]"#);
        assert_ne!(sorted, shuffled);
        assert_eq!(parse(&shuffled), parse(&sorted));
    }

    #[test]
    fn rejects_contradictory_and_malformed_readings() {
        let node = |rest: &str| observation_json(&format!(r#"{{"name":"n1","online":true,{rest}}}"#), "", "", "");
        let row = |hardware: &str, snapshots: &str| observation_json(PLAIN_NODE, hardware, "", snapshots);
        let hardware = |disks: &str| format!(r#""hardware":{{"disks":[{disks}],"host_devices":[],"other_volumes":[]}}"#);
        let storage = r#"{"active":true,"content":[],"kind":"dir","name":"dir1","shared":false}"#;
        let disk = r#"{"cdrom":false,"key":"scsi0","volume":"dir1:x"}"#;
        for (bad, expected) in [
            (node(r#""capacity":{"cpus":2}"#), "lacks the key `memory_available`"),
            (node(r#""capacity":null"#), "`capacity`"),
            (node(r#""capacity":{"cpus":2,"memory_available":-1,"memory_total":1}"#), "`memory_available`"),
            (node(r#""storages":null"#), "`storages`"),
            (node(&format!(r#""storages":[{storage},{storage}]"#)), "the storage `dir1` is listed twice"),
            (node(&format!(r#""storages":[{}]"#, storage.replace("dir1", "1 x"))), "is not the name of a storage"),
            (row("", r#""snapshots":[]"#), "`snapshots`"),
            (row("", r#""snapshots":{}"#), "lacks the key `list`"),
            (row("", r#""snapshots":{"list":[{"name":"s1"}]}"#), "lacks the key `ram`"),
            (row("", r#""snapshots":{"list":[{"name":"s1","ram":true},{"name":"s1","ram":false}]}"#), "the snapshot `s1` is listed twice"),
            (row(r#""hardware":{"disks":[]}"#, ""), "lacks the key `host_devices`"),
            (row(&hardware(&format!("{disk},{disk}")), ""), "`scsi0` is listed twice"),
            (row(&hardware(&disk.replace("scsi0", "rootfs")), ""), "`rootfs` is not a disk of a qemu guest"),
            (row(&hardware(&disk.replace("\"volume\"", "\"size_kib\":0,\"volume\"")), ""), "`size_kib`"),
            (row(&hardware(r#"{"cdrom":false,"key":"scsi0"}"#), ""), "lacks the key `volume`"),
            (observation_json(PLAIN_NODE, "", r#""replicated":null"#, ""), "`replicated`"),
        ] {
            let faults = observe::parse(bad.as_bytes()).expect_err(&bad);
            assert!(faults.list().iter().any(|fault| fault.message.contains(expected)), "{expected}: {faults:#?}");
        }
    }
}
