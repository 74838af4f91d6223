"""Validates artifacts against the published JSON Schemas with the `jsonschema` package.

Usage: schemas.py SCHEMAS FILE LIST. SCHEMAS is the directory of the schemas. FILE holds one document a line (.jsonl), LIST the
path of a document a line; which schema a document is held against follows from its `schema` member. Every fault is
printed. All schemas must have been used, or nothing was proved.
"""

import json
import sys
from pathlib import Path

from jsonschema import Draft202012Validator

KINDS = ["plan", "observation", "result", "history", "said", "doctor", "pin", "init", "guests", "entry", "verified", "reproduced", "backtest", "pruned", "explained", "diff"]
NAMES = {None: "desired"} | {f"converger.{kind}/1": kind for kind in KINDS}


def validators(directory):
    for identifier, name in NAMES.items():
        schema = json.loads((Path(directory) / f"{name}.schema.json").read_text(encoding="utf-8"))
        Draft202012Validator.check_schema(schema)
        yield identifier, Draft202012Validator(schema)


def documents(path):
    text = Path(path).read_text(encoding="utf-8")
    # Not splitlines(): a text may hold line separators that are no line ends here.
    return [json.loads(line) for line in text.split("\n") if line] if path.endswith(".jsonl") else [json.loads(text)]


def main(directory, paths):
    known = dict(validators(directory))
    counts = dict.fromkeys(NAMES.values(), 0)
    faults = 0
    for path in paths:
        for document in documents(path):
            # An entry comes with its place around it, and is logged without.
            identifier = document.get("entry", document).get("schema") if "index" in document else document.get("schema")
            counts[NAMES[identifier]] += 1
            for error in known[identifier].iter_errors(document):
                faults += 1
                print(f"{path}: {error.json_path}: {error.message[:300]}", file=sys.stderr)
    print(f"documents held against their schemas: {counts}; faults: {faults}")
    return 1 if faults or 0 in counts.values() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], [sys.argv[2], *Path(sys.argv[3]).read_text(encoding="utf-8").split("\n")]))
