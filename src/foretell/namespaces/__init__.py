"""Runs a program in namespaces of its own, so that the kernel holds what it writes, sends and starts.

Every writable file system is covered by an overlayfs whose upper layer is in the scratch folder (`root.py`): files are
changed there and nowhere else, whoever changes them. The network consists of loopback. The program's processes are in a
PID namespace whose first process ends them all when it ends (`processes.py`). docs/isolation.md describes it for users.

`foretell.runs` starts `__main__.py` by path, and the forks of a warm process use `processes.supervise`. Only the
standard library is imported, and as little of it as possible, because it costs time.
"""
