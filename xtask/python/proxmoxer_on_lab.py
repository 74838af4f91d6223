"""Has proxmoxer work on a lab and compares what comes of it with what Proxmox VE would have made of it.

Usage: proxmoxer_on_lab.py ROOM, the directory that `converger lab --into ROOM` has left. The world is xtask/ansible/world.yaml. The
certificate is checked against the lab's own authority. Guests that were there before are left as they were found.
"""

import json
import os
import sys

from proxmoxer import AuthenticationError, ProxmoxAPI, ResourceException
from proxmoxer.tools import Tasks


class Lab:
    """A lab, and the ways to it."""

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
        sys.exit(f"{what}: {found!r}, and not {wanted!r}")


def refused(call, status, words, what):
    """The call fails with that status, and the reason says why."""
    try:
        answer = call()
    except ResourceException as error:
        if error.status_code != status or words not in str(error):
            sys.exit(f"{what}: refused with {error}, and not with {status} and {words!r}")
        return
    sys.exit(f"{what}: not refused, but answered with {answer!r}")


def done(api, upid, what):
    """The task has ended well. The lab's clock moves with each request, so that the waiting is short."""
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
    refused(lambda: api.cluster.nextid.get(vmid=100), 400, "Parameter verification failed", "an id that is taken")
    refused(lambda: api.nodes("pve1").qemu(999).config.get(), 500, "does not exist", "a guest that is not there")


def power(api, node, kind, vmid):
    """From stopped to running and back, each read where it is true."""
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
    """One guest from its birth to its end."""
    node = api.nodes("pve1")
    done(api, node.qemu.post(vmid=300, name="toy", cores=1, memory=512, scsi0="tank:2", net0="virtio,bridge=vmbr0", agent=1), "create")
    guest = node.qemu(300)
    config = guest.config.get()
    equal((config["cores"], config["boot"]), (1, "order=scsi0;net0"), "the new guest")
    configure(guest, config["digest"])
    snapshots(api, guest)
    resized = guest.resize.put(disk="scsi0", size="3G")
    if lab.flavour == 7:
        equal(resized, None, "until 7 a disk grows at once")
    else:
        done(api, resized, "resize")
    equal(guest.config.get()["scsi0"].split("size=")[1], "3G", "the size")
    clones(api, node, guest)
    done(api, guest.migrate.post(target="pve2"), "migration")
    refused(guest.config.get, 500, "does not exist", "the guest on the node that it left")
    guest = api.nodes("pve2").qemu(300)
    done(api, guest.status.start.post(), "start on the other node")
    equal(guest.agent("get-host-name").get()["result"]["host-name"], "renamed", "what the guest calls itself")
    refused(guest.delete, 500, "VM 300 is running - destroy failed", "the end of a running guest")
    done(api, guest.status.stop.post(), "stop")
    done(api, guest.delete(), "the end")


def configure(guest, digest):
    guest.config.put(name="renamed", description="a=b;c&d+e%f", tags="Zoo;ape", digest=digest)
    config = guest.config.get()
    equal((config["name"], config["description"], config["tags"]), ("renamed", "a=b;c&d+e%f", "ape;zoo"), "the config")
    refused(lambda: guest.config.put(cores=2, digest=digest), 500, "checksum mis", "a digest of the day before")
    refused(lambda: guest.config.put(cores="many"), 400, "type check ('integer') failed", "a word for a number")
    refused(lambda: guest.config.put(colour="red"), 400, "property is not defined in schema", "a key that there is not")


def snapshots(api, guest):
    done(api, guest.snapshot.post(snapname="before", description="one core"), "snapshot")
    guest.config.put(cores=2)
    equal(ended(api, guest.snapshot.post(snapname="before")), "snapshot name 'before' already used", "a second one of that name")
    done(api, guest.snapshot("before").rollback.post(), "rollback")
    equal(guest.config.get()["cores"], 1, "the cores of that moment")
    equal([row["name"] for row in guest.snapshot.get()], ["before", "current"], "the snapshots")
    done(api, guest.snapshot("before").delete(), "the end of the snapshot")


def clones(api, node, guest):
    done(api, guest.clone.post(newid=301, name="twin", full=1), "full clone")
    twin = node.qemu(301)
    mine, its = guest.config.get(), twin.config.get()
    if mine["net0"] == its["net0"] or mine["smbios1"] == its["smbios1"]:
        sys.exit(f"a clone has the address or the identity of its original: {its}")
    done(api, twin.template.post(), "template")
    equal(ended(api, twin.status.start.post()), "you can't start a vm if it's a template", "start of a template")
    done(api, twin.clone.post(newid=302), "linked clone")
    equal("base volume" in ended(api, twin.delete()), True, "the end of a template that is in use")
    done(api, node.qemu(302).delete(), "the end of the linked clone")
    done(api, twin.delete(), "the end of the template")


def people(lab, api):
    """A user with a token of few rights, who sees and may just that."""
    api.access.users.post(userid="eve@pve", password="secret-of-eve")
    api.access.acl.put(path="/vms/100", roles="PVEAuditor", users="eve@pve")
    made = api.access.users("eve@pve").token("probe").post(privsep=0)
    eve = lab.connect(user="eve@pve", token_name="probe", token_value=made["value"])
    equal([row["vmid"] for row in eve.cluster.resources.get(type="vm")], [100], "what a user sees")
    refused(lambda: eve.nodes("pve1").qemu(100).config.put(cores=4), 403, "VM.Config.CPU", "a change without the right")
    refused(eve.nodes("pve1").qemu(100).status.stop.post, 403, "VM.PowerMgmt", "a stop without the right")
    person = lab.by_password("eve@pve", "secret-of-eve")
    equal(person.nodes("pve1").qemu(100).status.current.get()["status"], "running", "with a ticket")
    api.access.users("eve@pve").delete()
    refused(eve.version.get, 401, "", "a user who is gone")
    try:
        lab.by_password("eve@pve", "secret-of-eve")
    except AuthenticationError:
        return
    sys.exit("a user who is gone can log in")


def pools(api):
    api.pools.post(poolid="zoo", comment="animals")
    api.pools("zoo").put(vms="101,111", storage="tank")
    members = [row["id"] for row in api.pools("zoo").get()["members"]]
    equal(members[:2], ["qemu/101", "lxc/111"], "the guests of a pool")
    refused(api.pools("zoo").delete, 500, "is not empty (contains VM 101)", "the end of a pool in use")
    api.pools("zoo").put(vms="101,111", storage="tank", delete=1)
    api.pools("zoo").delete()


def availability(lab, api):
    ha = api.cluster.ha
    ha.resources.post(sid="vm:101", state="stopped", max_restart=2)
    if lab.flavour < 9:
        ha.groups.post(group="left", nodes="pve1,pve2:2")
        ha.resources("vm:101").put(group="left")
        refused(ha.groups("left").delete, 500, "ha group is used by service 'vm:101'", "the end of a group in use")
        ha.resources("vm:101").put(delete="group")
        ha.groups("left").delete()
    else:
        refused(ha.groups.get, 500, "ha groups have been migrated to rules", "groups since 9")
        ha.rules.post(rule="home", type="node-affinity", resources="vm:101", nodes="pve2")
        equal([rule["rule"] for rule in ha.rules.get()], ["home"], "the rules")
    equal(ha.resources("vm:101").get()["max_restart"], 2, "how often to try")
    equal(api.nodes("pve2").qemu(101).status.current.get()["ha"]["managed"], 1, "who manages the guest")
    ha.resources("vm:101").delete()


def firewall(api):
    for wall in (api.cluster.firewall, api.nodes("pve2").qemu(101).firewall):
        wall.options.put(enable=1)
        wall.aliases.post(name="lan", cidr="192.0.2.0/24")
        wall.ipset.post(name="trusted")
        wall.ipset("trusted").post(cidr="192.0.2.0/25")
        equal(wall.ipset("trusted")("192.0.2.0/25").get()["cidr"], "192.0.2.0/25", "a network with its slash")
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
    """Saved, restored as another, and both gone again."""
    node = api.nodes("pve2")
    done(api, node.vzdump.post(vmid=111, storage="local", compress="zstd"), "backup")
    [backup] = node.storage("local").content.get(content="backup", vmid=111)
    done(api, node.lxc.post(vmid=310, ostemplate=backup["volid"], restore=1, storage="tank"), "restore")
    equal(node.lxc(310).config.get()["hostname"], "mail", "the restored guest")
    done(api, node.lxc(310).delete(), "the end of the restored guest")
    done(api, node.storage("local").content(backup["volid"]).delete(), "the end of the backup")
    # For Ansible, whose module changes jobs and makes none.
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
