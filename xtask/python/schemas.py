"""Validates artifacts against the published JSON Schemas with the `jsonschema` package.

Usage: schemas.py SCHEMAS FILE LIST. SCHEMAS is the directory of the schemas. FILE contains one document per line (.jsonl), LIST one
path of a document per line; the `schema` member of a document selects its schema. Prints every error. Fails if a schema was not used,
because it would be unchecked.
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
    # Not splitlines(): a string may contain line separators that do not end a line here.
    return [json.loads(line) for line in text.split("\n") if line] if path.endswith(".jsonl") else [json.loads(text)]


def main(directory, paths):
    known = dict(validators(directory))
    counts = dict.fromkeys(NAMES.values(), 0)
    faults = 0
    for path in paths:
        for document in documents(path):
            # A printed entry is wrapped with its index; in the ledger it is not.
            identifier = document.get("entry", document).get("schema") if "index" in document else document.get("schema")
            counts[NAMES[identifier]] += 1
            for error in known[identifier].iter_errors(document):
                faults += 1
                print(f"{path}: {error.json_path}: {error.message[:300]}", file=sys.stderr)
    print(f"documents checked against their schemas: {counts}; errors: {faults}")
    return 1 if faults or 0 in counts.values() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], [sys.argv[2], *Path(sys.argv[3]).read_text(encoding="utf-8").split("\n")]))
