"""Runs a command in namespaces of its own, with the standard library alone; for tests as another user.

    start_contained.py NAMESPACES DIRECTORY CWD COMMAND...

Prints its answers, one a line, and the paths that were changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

namespaces, directory, cwd, *argv = sys.argv[1:]
specification = {
    "directory": directory, "writable": [], "is_online": False, "keeps_writes": False, "owner": None,
    "cwd": cwd, "home": cwd, "files": [], "argv": argv, "environment": dict(os.environ),
}  # fmt: skip
message = json.dumps(specification).encode()
control, ours = os.pipe()
theirs, answers = os.pipe()
process = subprocess.Popen(
    [sys.executable, "-I", "-S", namespaces, str(control), str(answers), str(len(message))], pass_fds=(control, answers)
)
os.close(control)
os.close(answers)
os.write(ours, message)
with os.fdopen(theirs) as lines:
    answered = list(lines)  # printed later: the command writes to the same pipe
process.wait()
for line in answered:
    print("answer", line, end="")
if os.path.exists(f"{directory}/writes.jsonl"):
    with open(f"{directory}/writes.jsonl") as lines:
        for line in map(json.loads, lines):
            print(line["change"], line["path"])
print("left", *sorted(os.listdir(directory)))
