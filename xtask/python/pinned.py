"""Checks that this interpreter has every package of a requirements file at exactly the pinned version.

Usage: pinned.py REQUIREMENTS. Every line is `name==version`, a comment or empty; anything else is refused.
"""

import sys
from importlib.metadata import PackageNotFoundError, version


def pins(text):
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        name, exact, wanted = line.partition("==")
        if not (name and exact and wanted):
            sys.exit(f"line {number}: `{line}` is not pinned; write `name==version`")
        yield name, wanted


def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def main(path):
    with open(path, encoding="utf-8") as file:
        wrong = [(name, wanted, installed(name)) for name, wanted in pins(file.read()) if installed(name) != wanted]
    for name, wanted, found in wrong:
        print(f"{path}: {name} must be {wanted}, but is {found}; remove target/ci-venv and run again", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
