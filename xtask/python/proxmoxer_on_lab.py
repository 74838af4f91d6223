"""Runs proxmoxer on a lab and compares the results with those of Proxmox VE.

Usage: proxmoxer_on_lab.py ROOM, the directory that `converger lab --into ROOM` has written. The world is xtask/ansible/world.yaml. The
certificate is verified with the lab's own authority. Existing guests end in the state that they started in.
"""

import json
import os
import sys

from proxmoxer import AuthenticationError, ProxmoxAPI, ResourceException
from proxmoxer.tools import Tasks


class Lab:
    """A lab, and how to connect to it."""

    def __init__(self, room):
        with open(os.path.join(room, "lab.json"), encoding="utf-8") as file:
            self.card = json.load(file)
        with open(os.path.join(room, self.card["token"]["secret"]["file"]), encoding="utf-8") as file:
            self.secret = file.read().strip()
        self.authority = os.path.join(room, self.card["authority"]["file"])
        self.flavour = self.card["flavour"]

    def by_token(self):
        user, name = self.card["token"]["id"].split("!")
        return self.connect(user=user, token_name=name, token_value=self.secret)

    def by_password(self, user, password):
        return self.connect(user=user, password=password)

    def connect(self, **who):
        node = self.card["nodes"][0]
        return ProxmoxAPI(node["host"], port=node["port"], verify_ssl=self.authority, **who)


def equal(found, wanted, what):
    if found != wanted:
        sys.exit(f"{what}: got {found!r}, expected {wanted!r}")


def refused(call, status, words, what):
    """The call must fail with this status, and its reason must contain these words."""
    try:
        answer = call()
    except ResourceException as error:
        if error.status_code != status or words not in str(error):
            sys.exit(f"{what}: failed with {error}, expected {status} and {words!r}")
        return
    sys.exit(f"{what}: must fail, but returned {answer!r}")


def done(api, upid, what):
    """The task must succeed. Each request advances the lab's clock, so that waiting is short."""
    equal(ended(api, upid), "OK", f"{what} ({upid})")


def ended(api, upid):
    return (Tasks.blocking_status(api, upid, polling_interval=0) or {}).get("exitstatus")


def lists(lab, api):
    equal(api.version.get()["version"].split(".")[0], str(lab.flavour), "the release")
    equal(sorted(node["node"] for node in api.nodes.get()), ["pve1", "pve2"], "the nodes")
    rows = {row["vmid"]: row for row in api.cluster.resources.get(type="vm")}
    kinds = {vmid: rows[vmid]["type"] for vmid in (100, 101, 110, 111)}
    equal(kinds, {100: "qemu", 101: "qemu", 110: "lxc", 111: "lxc"}, "the guests")
    equal([guest["vmid"] for guest in api.nodes("pve1").qemu.get()], [100], "the guests of pve1")
    quorate = [row["quorate"] for row in api.cluster.status.get() if row["type"] == "cluster"]
    equal(quorate, [1], "the quorum")
    equal(str(api.cluster.nextid.get()), "102", "the next free id")
    refused(lambda: api.cluster.nextid.get(vmid=100), 400, "Parameter verification failed", "an id in use")
    refused(lambda: api.nodes("pve1").qemu(999).config.get(), 500, "does not exist", "a missing guest")


def power(api, node, kind, vmid):
    """From stopped to running and back; the state is read from the guest itself."""
    guest = api.nodes(node)(kind)(vmid)
    equal(guest.status.current.get()["status"], "stopped", f"{vmid} before")
    done(api, guest.status.start.post(), f"start of {vmid}")
    equal(guest.status.current.get()["status"], "running", f"{vmid} after its start")
    if kind == "qemu":
        equal(ended(api, guest.status.start.post()), f"VM {vmid} already running", f"a second start of {vmid}")
    else:
        refused(guest.status.start.post, 500, f"CT {vmid} already running", f"a second start of {vmid}")
    done(api, guest.status.shutdown.post(timeout=30), f"shutdown of {vmid}")
    equal(guest.status.current.get()["status"], "stopped", f"{vmid} after its shutdown")


def life(lab, api):
    """One guest from its creation to its deletion."""
    node = api.nodes("pve1")
    done(api, node.qemu.post(vmid=300, name="toy", cores=1, memory=512, scsi0="tank:2", net0="virtio,bridge=vmbr0", agent=1), "create")
    guest = node.qemu(300)
    config = guest.config.get()
    equal((config["cores"], config["boot"]), (1, "order=scsi0;net0"), "the new guest")
    configure(guest, config["digest"])
    snapshots(api, guest)
    resized = guest.resize.put(disk="scsi0", size="3G")
    if lab.flavour == 7:
        equal(resized, None, "in release 7 a disk grows without a task")
    else:
        done(api, resized, "resize")
    equal(guest.config.get()["scsi0"].split("size=")[1], "3G", "the size")
    clones(api, node, guest)
    done(api, guest.migrate.post(target="pve2"), "migration")
    refused(guest.config.get, 500, "does not exist", "the guest on its former node")
    guest = api.nodes("pve2").qemu(300)
    done(api, guest.status.start.post(), "start on the other node")
    equal(guest.agent("get-host-name").get()["result"]["host-name"], "renamed", "the host name of the guest")
    refused(guest.delete, 500, "VM 300 is running - destroy failed", "deletion of a running guest")
    done(api, guest.status.stop.post(), "stop")
    done(api, guest.delete(), "deletion")


def configure(guest, digest):
    guest.config.put(name="renamed", description="a=b;c&d+e%f", tags="Zoo;ape", digest=digest)
    config = guest.config.get()
    equal((config["name"], config["description"], config["tags"]), ("renamed", "a=b;c&d+e%f", "ape;zoo"), "the config")
    refused(lambda: guest.config.put(cores=2, digest=digest), 500, "checksum mis", "a stale digest")
    refused(lambda: guest.config.put(cores="many"), 400, "type check ('integer') failed", "text instead of a number")
    refused(lambda: guest.config.put(colour="red"), 400, "property is not defined in schema", "an unknown key")


def snapshots(api, guest):
    done(api, guest.snapshot.post(snapname="before", description="one core"), "snapshot")
    guest.config.put(cores=2)
    equal(ended(api, guest.snapshot.post(snapname="before")), "snapshot name 'before' already used", "a second snapshot of that name")
    done(api, guest.snapshot("before").rollback.post(), "rollback")
    equal(guest.config.get()["cores"], 1, "the cores after the rollback")
    equal([row["name"] for row in guest.snapshot.get()], ["before", "current"], "the snapshots")
    done(api, guest.snapshot("before").delete(), "deletion of the snapshot")


def clones(api, node, guest):
    done(api, guest.clone.post(newid=301, name="twin", full=1), "full clone")
    twin = node.qemu(301)
    mine, its = guest.config.get(), twin.config.get()
    if mine["net0"] == its["net0"] or mine["smbios1"] == its["smbios1"]:
        sys.exit(f"a clone has the MAC address or the identity of its original: {its}")
    done(api, twin.template.post(), "template")
    equal(ended(api, twin.status.start.post()), "you can't start a vm if it's a template", "start of a template")
    done(api, twin.clone.post(newid=302), "linked clone")
    equal("base volume" in ended(api, twin.delete()), True, "deletion of a template in use")
    done(api, node.qemu(302).delete(), "deletion of the linked clone")
    done(api, twin.delete(), "deletion of the template")


def people(lab, api):
    """A user and a token with few privileges see only what these allow."""
    api.access.users.post(userid="eve@pve", password="secret-of-eve")
    api.access.acl.put(path="/vms/100", roles="PVEAuditor", users="eve@pve")
    made = api.access.users("eve@pve").token("probe").post(privsep=0)
    eve = lab.connect(user="eve@pve", token_name="probe", token_value=made["value"])
    equal([row["vmid"] for row in eve.cluster.resources.get(type="vm")], [100], "the guests that a user sees")
    refused(lambda: eve.nodes("pve1").qemu(100).config.put(cores=4), 403, "VM.Config.CPU", "a change without the privilege")
    refused(eve.nodes("pve1").qemu(100).status.stop.post, 403, "VM.PowerMgmt", "a stop without the privilege")
    person = lab.by_password("eve@pve", "secret-of-eve")
    equal(person.nodes("pve1").qemu(100).status.current.get()["status"], "running", "the status with a ticket")
    api.access.users("eve@pve").delete()
    refused(eve.version.get, 401, "", "a deleted user")
    try:
        lab.by_password("eve@pve", "secret-of-eve")
    except AuthenticationError:
        return
    sys.exit("a deleted user can log in")


def pools(api):
    api.pools.post(poolid="zoo", comment="animals")
    api.pools("zoo").put(vms="101,111", storage="tank")
    members = [row["id"] for row in api.pools("zoo").get()["members"]]
    equal(members[:2], ["qemu/101", "lxc/111"], "the guests of a pool")
    refused(api.pools("zoo").delete, 500, "is not empty (contains VM 101)", "deletion of a pool in use")
    api.pools("zoo").put(vms="101,111", storage="tank", delete=1)
    api.pools("zoo").delete()


def availability(lab, api):
    ha = api.cluster.ha
    ha.resources.post(sid="vm:101", state="stopped", max_restart=2)
    if lab.flavour < 9:
        ha.groups.post(group="left", nodes="pve1,pve2:2")
        ha.resources("vm:101").put(group="left")
        refused(ha.groups("left").delete, 500, "ha group is used by service 'vm:101'", "deletion of a group in use")
        ha.resources("vm:101").put(delete="group")
        ha.groups("left").delete()
    else:
        refused(ha.groups.get, 500, "ha groups have been migrated to rules", "groups since release 9")
        ha.rules.post(rule="home", type="node-affinity", resources="vm:101", nodes="pve2")
        equal([rule["rule"] for rule in ha.rules.get()], ["home"], "the rules")
    equal(ha.resources("vm:101").get()["max_restart"], 2, "the retry limit")
    equal(api.nodes("pve2").qemu(101).status.current.get()["ha"]["managed"], 1, "whether HA manages the guest")
    ha.resources("vm:101").delete()


def firewall(api):
    for wall in (api.cluster.firewall, api.nodes("pve2").qemu(101).firewall):
        wall.options.put(enable=1)
        wall.aliases.post(name="lan", cidr="192.0.2.0/24")
        wall.ipset.post(name="trusted")
        wall.ipset("trusted").post(cidr="192.0.2.0/25")
        equal(wall.ipset("trusted")("192.0.2.0/25").get()["cidr"], "192.0.2.0/25", "a network with a slash in the path")
        wall.rules.post(type="in", action="ACCEPT", proto="tcp", dport="22", source="+trusted", enable=1)
        wall.rules.post(type="in", action="DROP")
        equal([rule["action"] for rule in wall.rules.get()], ["DROP", "ACCEPT"], "the newest rule is the first")
        for _ in range(2):
            wall.rules(0).delete()
        wall.ipset("trusted")("192.0.2.0/25").delete()
        wall.ipset("trusted").delete()
        wall.aliases("lan").delete()
        wall.options.put(delete="enable")


def backups(api):
    """Backs a guest up, restores it as another one, and deletes both."""
    node = api.nodes("pve2")
    done(api, node.vzdump.post(vmid=111, storage="local", compress="zstd"), "backup")
    [backup] = node.storage("local").content.get(content="backup", vmid=111)
    done(api, node.lxc.post(vmid=310, ostemplate=backup["volid"], restore=1, storage="tank"), "restore")
    equal(node.lxc(310).config.get()["hostname"], "mail", "the restored guest")
    done(api, node.lxc(310).delete(), "deletion of the restored guest")
    done(api, node.storage("local").content(backup["volid"]).delete(), "deletion of the backup")
    # For Ansible, whose module changes jobs but cannot create them.
    api.cluster.backup.post(id="nightly", vmid="100", schedule="21:00", storage="local", mode="snapshot")


def main(room):
    lab = Lab(room)
    api = lab.by_token()
    lists(lab, api)
    power(api, "pve2", "qemu", 101)
    power(api, "pve2", "lxc", 111)
    life(lab, api)
    people(lab, api)
    pools(api)
    availability(lab, api)
    firewall(api)
    backups(api)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
