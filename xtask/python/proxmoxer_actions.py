"""Requests every action of the program on a lab, and confirms each result with proxmoxer, which shares no code with the program.

Usage: proxmoxer_actions.py ROOM PROGRAM, the directory that `converger lab --into ROOM` has written, and the path of `converger`. The world is
xtask/ansible/world.yaml; guests 101 and 111 are stopped, 100 and 110 run. Steps that are not benign are confirmed at a terminal, as a person
does it; snapshot deletion and rollback need a signed approval, so the program must refuse them and leave the snapshots as they are.
"""

import sys

from program_actions import Actions
from proxmoxer_on_lab import Lab, equal, refused


def taken_snapshots(guest):
    return {row["name"]: row for row in guest.snapshot.get() if row["name"] != "current"}


def snapshots(api, actions):
    for target, node, kind, vmid in [("vm/101", "pve2", "qemu", 101), ("ct/111", "pve2", "lxc", 111)]:
        guest = api.nodes(node)(kind)(vmid)
        actions.request("vm.snapshot.create", target, "name=pre-upgrade", "description=a=b; c")
        found = taken_snapshots(guest)["pre-upgrade"]
        equal((found["description"].strip(), "snapstate" in found), ("a=b; c", False), f"the snapshot of {target}")
        before = taken_snapshots(guest)
        actions.refuse("approval-missing", "vm.snapshot.rollback", target, "name=pre-upgrade")
        actions.refuse("approval-missing", "vm.snapshot.delete", target, "name=pre-upgrade")
        equal(taken_snapshots(guest), before, f"the snapshots of {target} after what was refused")
    running = api.nodes("pve1").qemu(100)
    actions.request("vm.snapshot.create", "vm/100", "name=with-memory", "ram=true")
    found = taken_snapshots(running)["with-memory"]
    equal((found["vmstate"], running.status.current.get()["status"]), (1, "running"), "the snapshot with memory")


def clones(api, actions):
    for target, node, kind, vmid, newid, disk, name in [
        ("vm/101", "pve2", "qemu", 101, 320, "scsi0", "name"),
        ("ct/111", "pve2", "lxc", 111, 321, "rootfs", "hostname"),
    ]:
        actions.request("vm.clone", target, f"newid={newid}", f"name=copy-{newid}", "disks=full")
        mine, its = api.nodes(node)(kind)(vmid).config.get(), api.nodes(node)(kind)(newid).config.get()
        equal((its[name], "lock" in its), (f"copy-{newid}", False), f"the name of {newid}")
        equal(its[disk].split(":")[1].startswith(f"vm-{newid}-disk-"), True, f"the disk of {newid}")
        for key in ("cores", "memory"):
            equal(its[key], mine[key], f"{key} of {newid}")
        if mine["net0"] == its["net0"]:
            sys.exit(f"{newid} has the MAC address of its source: {its['net0']}")
    refused(lambda: api.cluster.nextid.get(vmid=320), 400, "already exists", "the id of the clone")
    actions.request("vm.start", "vm/320")
    equal(api.nodes("pve2").qemu(320).status.current.get()["status"], "running", "the clone after its start")


def linked_clone(api, actions):
    node = api.nodes("pve2")
    node.lxc(321).template.post()
    actions.request("vm.clone", "ct/321", "newid=322", "name=copy-322", "disks=linked")
    equal(node.lxc(322).config.get()["rootfs"].split(",")[0], "tank:base-321-disk-0/vm-322-disk-0", "the disk of the linked clone")


def migrations(api, actions):
    for target, kind, vmid, source, node, state in [
        ("vm/101", "qemu", 101, "pve2", "pve1", "stopped"),
        ("ct/111", "lxc", 111, "pve2", "pve1", "stopped"),
        ("vm/320", "qemu", 320, "pve2", "pve1", "running"),
        ("ct/110", "lxc", 110, "pve1", "pve2", "running"),
    ]:
        moved = api.nodes(node)(kind)(vmid)
        actions.request("vm.migrate", target, f"node={node}", *mode_of(kind, state))
        equal(moved.status.current.get()["status"], state, f"{target} on {node}")
        refused(api.nodes(source)(kind)(vmid).config.get, 500, "does not exist", f"{target} on its former node")


def mode_of(kind, state):
    if state == "stopped":
        return []
    return ["mode=online" if kind == "qemu" else "mode=restart"]


def growth(api, actions):
    for target, kind, vmid, disk in [("vm/101", "qemu", 101, "scsi0"), ("ct/111", "lxc", 111, "rootfs")]:
        actions.request("vm.disk.grow", target, f"disk={disk}", "size=24GiB")
        equal(api.nodes("pve1")(kind)(vmid).config.get()[disk].split("size=")[1], "24G", f"the size of {disk} of {target}")


def main(room, program):
    lab = Lab(room)
    api, actions = lab.by_token(), Actions(room, program)
    snapshots(api, actions)
    clones(api, actions)
    linked_clone(api, actions)
    migrations(api, actions)
    growth(api, actions)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
