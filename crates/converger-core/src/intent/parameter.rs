//! The actions that can be requested, with their parameters. Help texts, completion and the parser use this table.

/// An action that can be requested.
#[derive(Clone, Copy, Debug)]
pub struct ActionSpec {
    /// Its name.
    pub name: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    /// Its parameters, sorted by name. `vm.config.set` and `vm.clone` also take every managed field of the guest's kind.
    pub parameters: &'static [ActionParameter],
}

impl ActionSpec {
    /// Whether every managed field of the guest's kind is a parameter too.
    #[must_use]
    pub fn takes_fields(&self) -> bool {
        matches!(self.name, "vm.clone" | "vm.config.set")
    }
}

/// A parameter of an action.
#[derive(Clone, Copy, Debug)]
pub struct ActionParameter {
    /// Its name.
    pub name: &'static str,
    /// What its value looks like.
    pub value: &'static str,
    /// The values that it can have, if they are few.
    pub choices: &'static [&'static str],
    /// Whether it must be given.
    pub is_required: bool,
    /// What it is for.
    pub help: &'static str,
}

const fn required(name: &'static str, value: &'static str, help: &'static str) -> ActionParameter {
    ActionParameter { name, value, choices: &[], is_required: true, help }
}

const fn optional(name: &'static str, value: &'static str, help: &'static str) -> ActionParameter {
    ActionParameter { is_required: false, ..required(name, value, help) }
}

const fn choice(name: &'static str, choices: &'static [&'static str], help: &'static str) -> ActionParameter {
    ActionParameter { choices, ..optional(name, "WORD", help) }
}

const FLAG: &[&str] = &["true", "false"];
const TIMEOUT: ActionParameter = optional("timeout", "SECONDS", "how long the guest may take to shut down; 180 if not given");
const SNAPSHOT: ActionParameter = required("name", "NAME", "the snapshot");

/// All actions, sorted by name.
pub static ACTIONS: [ActionSpec; 11] = [
    ActionSpec {
        name: "vm.clone",
        help: "Make a new guest from another one",
        parameters: &[
            optional("addresses", "ADDRESS,...", "the addresses of the first network device: CIDR, dhcp, dhcp6 or auto"),
            optional("bridge", "BRIDGE", "the bridge of the first network device; that of the source if not given"),
            optional("ci-user", "USER", "the user that cloud-init makes"),
            optional("cpu", "TYPE", "the type of the virtual CPU"),
            optional("disk", "DISK", "the disk that `disk-size` is for; the one that it boots from if not given"),
            optional("disk-size", "SIZE", "the absolute size of a disk, such as 40GiB; that of the source if not given"),
            choice(
                "disks",
                &["full", "linked"],
                "copy the disks, or base them on a template; linked for a template without `storage`, full otherwise",
            ),
            optional("dns", "ADDRESS,...", "the DNS servers"),
            optional("gateway", "ADDRESS,...", "the gateways of the first network device, at most one per family"),
            optional("mac", "MAC", "the address of the first network device; a new one if not given"),
            required("name", "NAME", "the name of the new guest"),
            required("newid", "VMID", "the id of the new guest"),
            optional("node", "NODE", "the node of the new guest; that of the source if not given"),
            optional("password", "REFERENCE", "where the password of the user is stored: env:NAME, file:/PATH or credential:NAME"),
            optional("pool", "POOL", "the pool that the new guest becomes a member of"),
            optional("search-domain", "DOMAIN", "the domain that short host names are searched in"),
            optional("ssh-keys", "KEYS", "the public SSH keys of the user, one per line"),
            choice("start", FLAG, "start the new guest at the end; false if not given"),
            optional("storage", "STORAGE", "the storage of copied disks; those of the source if not given"),
            optional("vlan", "TAG", "the virtual network of the first network device"),
        ],
    },
    ActionSpec {
        name: "vm.config.set",
        help: "Write config keys of a guest",
        parameters: &[optional("unset", "KEY,...", "keys to remove")],
    },
    ActionSpec {
        name: "vm.disk.grow",
        help: "Grow a disk to an absolute size",
        parameters: &[
            required("disk", "DISK", "the disk, such as scsi0 or rootfs"),
            required("size", "SIZE", "the new size, such as 40GiB"),
        ],
    },
    ActionSpec {
        name: "vm.migrate",
        help: "Move a guest to another node",
        parameters: &[
            choice("local-disks", FLAG, "copy disks on local storage to the other node; false if not given"),
            choice("mode", &["online", "offline", "restart"], "how to move it; by its run-state if not given"),
            required("node", "NODE", "the node to move to"),
            optional("storage", "STORAGE", "the storage for copied disks; the same names if not given"),
        ],
    },
    ActionSpec { name: "vm.reboot", help: "Shut a guest down gracefully and start it again", parameters: &[TIMEOUT] },
    ActionSpec { name: "vm.shutdown", help: "Shut a guest down gracefully; never ends in a hard stop", parameters: &[TIMEOUT] },
    ActionSpec {
        name: "vm.snapshot.create",
        help: "Make a snapshot of a guest",
        parameters: &[
            optional("description", "TEXT", "a description for people"),
            required("name", "NAME", "the name of the new snapshot"),
            choice("ram", FLAG, "save the memory of the running guest too; false if not given"),
        ],
    },
    ActionSpec { name: "vm.snapshot.delete", help: "Delete a snapshot of a guest", parameters: &[SNAPSHOT] },
    ActionSpec { name: "vm.snapshot.rollback", help: "Return a guest to a snapshot; everything since is lost", parameters: &[SNAPSHOT] },
    ActionSpec { name: "vm.start", help: "Start a guest", parameters: &[] },
    ActionSpec { name: "vm.stop", help: "Stop a guest at once, as if its power were cut", parameters: &[] },
];

/// The action with this name.
#[must_use]
pub fn find_action(name: &str) -> Option<&'static ActionSpec> {
    ACTIONS.iter().find(|action| action.name == name)
}
