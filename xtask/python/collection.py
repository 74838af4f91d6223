"""Takes the collection community.proxmox out of Ansible's bundle.

Usage: collection.py WHEELS INTO. WHEELS holds the one wheel that pip has downloaded and whose digest it has checked; INTO then
holds `ansible_collections/community/proxmox`, and what else the bundle has is left in it.
"""

import glob
import os
import sys
import zipfile

COLLECTION = "ansible_collections/community/proxmox/"


def main(wheels, into):
    found = glob.glob(os.path.join(wheels, "ansible-*.whl"))
    if len(found) != 1:
        sys.exit(f"{wheels}: one wheel of ansible is expected there, not {found}")
    with zipfile.ZipFile(found[0]) as bundle:
        members = [name for name in bundle.namelist() if name.startswith(COLLECTION)]
        if f"{COLLECTION}MANIFEST.json" not in members:
            sys.exit(f"{found[0]}: no {COLLECTION} in it; another version of the bundle may have it")
        bundle.extractall(into, members)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
