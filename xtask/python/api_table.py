"""Compares the lab's table of methods with an API schema of Proxmox VE.

    python3 xtask/python/api_table.py SCHEMA

SCHEMA is JSON, plain or gzipped: {"paths": {"/path/{id}": {"GET": {"parameters": {...}, "returns": {...}, "permissions": {...}}}}},
the tree that Proxmox publishes with its API viewer, flattened. It is not needed to build, run or test anything, because everything is
checked against the table (crates/converger-lab/data). Run this after adding a method or a release, to see whether the table still agrees
with the schema. It prints the method and the parameter of each difference.
"""

import gzip
import json
import sys
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "crates/converger-lab/data"
LETTERS = {"string": "s", "integer": "i", "number": "n", "boolean": "b", "array": "a"}
BOUNDS = (("minimum", "min"), ("maximum", "max"), ("minLength", "minl"), ("maxLength", "maxl"))


def schema(path):
    raw = Path(path).read_bytes()
    return json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)["paths"]


def parameter_differs(written, told):
    """Compares a parameter in the table with the same parameter in the schema."""
    if written["t"] != LETTERS[told["type"]]:
        yield f"is `{written['t']}` in the table and {told['type']} in the schema"
    for name, short in BOUNDS:
        if written.get(short) != told.get(name):
            yield f"{name} is {written.get(short)} in the table and {told.get(name)} in the schema"
    if sorted(written.get("enum", [])) != sorted(told.get("enum", [])):
        yield "the enumerations differ"
    if isinstance(told.get("format"), str) and "sub" not in written and written.get("fmt") != told["format"]:
        yield f"format is {written.get('fmt')} in the table and {told['format']} in the schema"


def names(parameters):
    """`net#@8!` is net0, net1 and so on, since release 8, and required."""
    return {key.split("@")[0].rstrip("!"): (key, "!" in key, of_type) for key, of_type in parameters.items()}


def is_wider(written, told):
    """If any of several privileges is enough, the table also lists those that older releases had instead."""
    lists = isinstance(written, list) and isinstance(told, list) and len(written) == len(told) == 5
    return lists and written[:2] == told[:2] and set(written[2]) >= set(told[2]) and written[3:] == told[3:]


def method_differs(method, told, types):
    written = names(method["a"])
    in_schema = {name.replace("[n]", "#"): value for name, value in told["parameters"].items()}
    for name in sorted(set(written) ^ set(in_schema)):
        yield name, "is only in the " + ("table" if name in written else "schema")
    for name in sorted(set(written) & set(in_schema)):
        _, needed, of_type = written[name]
        if needed == bool(in_schema[name].get("optional")):
            yield name, "is required in only one of both"
        yield from ((name, what) for what in parameter_differs(types[of_type], in_schema[name]))
    permissions = told.get("permissions") or {}
    wanted = permissions.get("check") or permissions.get("user") or "root"
    if method["c"] != wanted and not is_wider(method["c"], wanted):
        yield "(permission)", f"{json.dumps(method['c'])} in the table and {json.dumps(wanted)} in the schema"


def main():
    table = json.loads((DATA / "api.json").read_text())
    told = schema(sys.argv[1])
    parameters = differing = unknown = 0
    for method in table["methods"]:
        place = f"{method['m']} {method['p']}"
        here = told.get(method["p"], {}).get(method["m"])
        if here is None:
            unknown += 1
            continue
        parameters += len(method["a"])
        for name, what in method_differs(method, here, table["types"]):
            print(f"{place}: {name}: {what}")
            differing += 1
    returned = {(row["m"], row["p"]) for row in map(json.loads, (DATA / "returns.jsonl").read_text().splitlines())}
    for method in table["methods"]:
        if (method["m"], method["p"]) not in returned:
            print(f"{method['m']} {method['p']}: missing in returns.jsonl")
            differing += 1
    print(f"{len(table['methods'])} methods, {parameters} parameters, {unknown} methods missing in this schema, {differing} differences")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
