"""Extracts the collection community.proxmox from Ansible's bundle.

Usage: collection.py WHEELS INTO. WHEELS contains the one wheel that pip has downloaded and verified; INTO then contains
`ansible_collections/community/proxmox`. The rest of the bundle is not extracted.
"""

import glob
import os
import sys
import zipfile

COLLECTION = "ansible_collections/community/proxmox/"


def main(wheels, into):
    found = glob.glob(os.path.join(wheels, "ansible-*.whl"))
    if len(found) != 1:
        sys.exit(f"{wheels}: expected one wheel of ansible, found {found}")
    with zipfile.ZipFile(found[0]) as bundle:
        members = [name for name in bundle.namelist() if name.startswith(COLLECTION)]
        if f"{COLLECTION}MANIFEST.json" not in members:
            sys.exit(f"{found[0]}: does not contain {COLLECTION}; another version of the bundle may")
        bundle.extractall(into, members)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
