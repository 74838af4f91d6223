"""Has proxmoxer work on a lab and compares what comes of it with what Proxmox VE would have made of it.

Usage: proxmoxer_on_lab.py ROOM, the directory that `converger lab --into ROOM` has left. The certificate is checked against the
lab's own authority.
"""

import json
import os
import sys

from proxmoxer import ProxmoxAPI
from proxmoxer.tools import Tasks


class Lab:
    """A lab, and the way to it."""

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

    def connect(self, **who):
        node = self.card["nodes"][0]
        return ProxmoxAPI(node["host"], port=node["port"], verify_ssl=self.authority, **who)


def equal(found, wanted, what):
    if found != wanted:
        sys.exit(f"{what}: {found!r}, and not {wanted!r}")


def done(api, upid, what):
    """The task has ended well. The lab's clock moves with each request, so that the waiting is short."""
    ended = Tasks.blocking_status(api, upid, polling_interval=0)
    equal((ended or {}).get("exitstatus"), "OK", f"{what} ({upid})")


def lists(lab, api):
    equal(api.version.get()["version"].split(".")[0], str(lab.flavour), "the release")
    equal(sorted(node["node"] for node in api.nodes.get()), ["pve1", "pve2"], "the nodes")
    rows = {row["vmid"]: row for row in api.cluster.resources.get(type="vm")}
    equal({vmid: rows[vmid]["type"] for vmid in (100, 101, 110, 111)}, {100: "qemu", 101: "qemu", 110: "lxc", 111: "lxc"}, "the guests")
    equal([guest["vmid"] for guest in api.nodes("pve1").qemu.get() if guest["vmid"] == 100], [100], "the guests of pve1")


def power(api, node, kind, vmid):
    """From stopped to running and back, each read where it is true."""
    guest = api.nodes(node)(kind)(vmid)
    equal(guest.status.current.get()["status"], "stopped", f"{vmid} before")
    done(api, guest.status.start.post(), f"start of {vmid}")
    equal(guest.status.current.get()["status"], "running", f"{vmid} after its start")
    done(api, guest.status.stop.post(), f"stop of {vmid}")
    equal(guest.status.current.get()["status"], "stopped", f"{vmid} after its stop")


def main(room):
    lab = Lab(room)
    api = lab.by_token()
    lists(lab, api)
    power(api, "pve2", "qemu", 101)
    power(api, "pve2", "lxc", 111)
    api.cluster.backup.post(id="nightly", vmid="100", schedule="21:00", storage="local", mode="snapshot")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
