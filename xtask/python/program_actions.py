"""Requests actions of the program on a lab, as a person does: the plan first, then exactly this plan. Needs the standard library only.

Usage: program_actions.py ROOM PROGRAM, the directory that `converger lab --into ROOM` has written, and the path of `converger`. The world is
xtask/ansible/world.yaml. Prints the number of API requests of each action as JSON: those of `--plan`, and those of the run, which plans again.
"""

import json
import os
import pty
import re
import select
import subprocess
import sys

SECONDS_MAX = 120
# Exit codes of the program.
DONE, REFUSED, CHANGES_PENDING = 0, 3, 4
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Actions:
    """The program, run in the room, whose converger.toml points to the lab."""

    def __init__(self, room, program):
        self.room, self.program = room, os.path.abspath(program)

    def run(self, words, code):
        """Runs the program without a terminal; its output is one JSON document."""
        command = [self.program, *words, "--json"]
        ended = subprocess.run(command, cwd=self.room, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        if ended.returncode != code:
            sys.exit(f"{' '.join(words)}: ended with {ended.returncode}, expected {code}\n{ended.stdout}{ended.stderr}")
        return json.loads(ended.stdout)

    def plan(self, *words):
        return self.run(["action", *words, "--plan"], CHANGES_PENDING)

    def request(self, *words):
        """Plans one action, and confirms exactly what was planned."""
        self.apply(self.plan(*words), *words)

    def apply(self, plan, *words):
        """A digest confirms benign steps only; a person at a terminal confirms the others."""
        if all(step["class"] == "benign" for step in steps_of(plan)):
            self.run(["action", *words, "--confirm", plan["proposal"]], DONE)
        else:
            self.confirm_at_terminal(["action", *words, "--out", "result.json", "--overwrite"], plan)

    def refuse(self, code, *words):
        """The program must plan the action and refuse to apply it, for this reason."""
        plan = self.plan(*words)
        ended = self.run(["action", *words, "--confirm", plan["proposal"]], REFUSED)
        if f'"{code}"' not in json.dumps(ended):
            sys.exit(f"{' '.join(words)}: refused without `{code}`: {ended}")

    def confirm_at_terminal(self, words, plan):
        """Answers each question once it is asked: what is typed before a question does not answer it."""
        names = [guest["name"] for guest in plan["body"]["guests"] if guest["verdict"] == "steps"]
        ours, its = pty.openpty()
        child = subprocess.Popen([self.program, *words], cwd=self.room, stdin=its, stdout=its, stderr=its)
        os.close(its)
        shown, unanswered = "", ""
        try:
            while text := read_terminal(ours):
                shown, unanswered = shown + text, unanswered + COLOURS.sub("", text)
                if "[yes/no] " in unanswered:
                    answer = "yes"
                elif "Type its name: " in unanswered and names:
                    answer = names.pop(0)
                else:
                    continue
                unanswered = ""
                os.write(ours, f"{answer}\n".encode())
            code = child.wait(SECONDS_MAX)
        finally:
            child.kill()
            child.wait()
            os.close(ours)
        if code != DONE:
            sys.exit(f"{' '.join(words)}: ended with {code} at a terminal\n{shown}")


def read_terminal(ours):
    """What the program has written; nothing if it ended, which Linux reports as an error, or if it is silent for too long."""
    try:
        ready, _, _ = select.select([ours], [], [], SECONDS_MAX)
        return os.read(ours, 65536).decode(errors="replace") if ready else ""
    except OSError:
        return ""


def steps_of(plan):
    return [step for guest in plan["body"]["guests"] for step in guest.get("steps", [])]


# One request of each action, in an order in which every one of them is possible.
MEASURED = [
    ("vm.snapshot.create", "vm/101", "name=pre-upgrade"),
    ("vm.snapshot.create with memory", "vm/100", "name=with-memory", "ram=true"),
    ("vm.config.set", "vm/101", "cores=2"),
    ("vm.disk.grow", "vm/101", "disk=scsi0", "size=24GiB"),
    ("vm.clone", "vm/101", "newid=320", "name=copy-320", "disks=full"),
    ("vm.start", "vm/320"),
    ("vm.migrate", "vm/320", "node=pve1", "mode=online"),
    ("vm.migrate of a stopped guest", "ct/111", "node=pve1"),
    ("vm.reboot", "vm/320"),
    ("vm.shutdown", "vm/320"),
    ("vm.stop", "ct/110"),
]


def request_count(room):
    with open(os.path.join(room, "requests.jsonl"), encoding="utf-8") as file:
        return sum(1 for _ in file)


# Each request moves the clock of the lab by a second, and a node reports its guests every ten.
SECONDS_BETWEEN = 22


def let_nodes_report(actions):
    """A node that has not reported the last change yet costs a reading one more request, which depends on when it is asked."""
    begun = request_count(actions.room)
    while request_count(actions.room) < begun + SECONDS_BETWEEN:
        actions.run(["guests"], DONE)


def measure(actions, words):
    let_nodes_report(actions)
    begun = request_count(actions.room)
    plan = actions.plan(*words)
    planned = request_count(actions.room)
    actions.apply(plan, *words)
    return {"plan": planned - begun, "run": request_count(actions.room) - planned}


def main(room, program):
    actions = Actions(room, program)
    counts = {name: measure(actions, [name.split()[0], *words]) for name, *words in MEASURED}
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
