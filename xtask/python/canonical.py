"""Compares our canonical JSON with the `rfc8785` package: every line must equal its output.

Usage: canonical.py FILE LEAST. FILE contains one document per line; fewer than LEAST lines is an error.
"""

import hashlib
import json
import sys

import rfc8785


def check(number, line):
    document = json.loads(line)
    if rfc8785.dumps(document) != line:
        return f"line {number}: not in canonical form"
    digest = "sha256:" + hashlib.sha256(rfc8785.dumps(document["body"])).hexdigest()
    if digest != document["digest"]:
        return f"line {number}: the digest is {document['digest']}, that of the body is {digest}"
    return None


def main(path, least):
    count, faults = 0, 0
    with open(path, "rb") as file:
        for count, line in enumerate(file, start=1):
            fault = check(count, line.rstrip(b"\n"))
            if fault:
                faults += 1
                print(f"{path}: {fault}", file=sys.stderr)
    print(f"{count} plans compared with rfc8785: {faults} differ")
    return 1 if faults or count < least else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
