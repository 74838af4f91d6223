"""Validates artifacts against the published JSON Schemas with the `jsonschema` package.

Usage: schemas.py SCHEMA FILE... Each FILE is one JSON document; all are validated, every fault is printed.
"""

import json
import sys

from jsonschema import Draft202012Validator


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main(schema_path, paths):
    schema = load(schema_path)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    faults = 0
    for path in paths:
        for error in validator.iter_errors(load(path)):
            faults += 1
            print(f"{path}: {error.json_path}: {error.message[:300]}", file=sys.stderr)
    print(f"{len(paths)} documents against {schema_path}: {faults} faults")
    return 1 if faults or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
