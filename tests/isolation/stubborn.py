"""Starts processes that are hard to end, and does not end itself: a script for tests that kill.

All of them keep this process's standard output open, so its end is the end of the last one. Prints `ready`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
DEAF = "import os, signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; os.write(2, b'.'); signal.pause()"
for session in (False, True):
    words = [sys.executable, "-c", DEAF, *sys.argv[1:]]
    child = subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=session)
    assert child.stderr is not None
    child.stderr.read(1)
subprocess.Popen(["setsid", "env", "-i", "sleep", "600"])
if os.fork() == 0:  # a daemon
    os.setsid()
    if os.fork() == 0:
        signal.pause()
    os._exit(0)
print("ready", flush=True)
while True:
    signal.pause()
