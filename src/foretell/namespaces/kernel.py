"""The kernel's side: creating namespaces, mounting, and giving up capabilities, through libc."""

import ctypes
import os
import signal

# linux/sched.h, linux/mount.h, linux/prctl.h, linux/capability.h
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
CAPABILITY_VERSION_3, NUM_CAPABILITIES = 0x20080522, 64
# chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service, ipc_lock, sys_nice: root may do with its
# files what it always may, and nothing to the machine.
KEPT_BY_ROOT = (0, 1, 3, 4, 5, 6, 7, 10, 14, 23)
SIOCSIFFLAGS, IFF_UP = 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


class CannotIsolate(Exception):
    """The kernel refuses; the text says what."""


def die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# --- namespaces -------------------------------------------------------------------------------------------------------


def enter_pid_namespace() -> bool:
    """For the children of this process. Returns whether that took a user namespace, which only root can do without:
    the mounts of today are then locked together, and an overlay cannot show what is below one of them."""
    if os.geteuid() == 0 and _libc.unshare(CLONE_NEWPID) == 0:
        return False
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWPID), "cannot create a user namespace")
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError as error:
        raise CannotIsolate(f"cannot set up a user namespace: {error.strerror}") from None
    return True


def enter_other_namespaces(*, is_online: bool) -> None:
    """A mount, an IPC and a network namespace; the last has loopback alone."""
    flags = CLONE_NEWNS | CLONE_NEWIPC | (0 if is_online else CLONE_NEWNET)
    _check(_libc.unshare(flags), "cannot create a mount and a network namespace")
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    if not is_online:
        _bring_loopback_up()


def _bring_loopback_up() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def drop_capabilities() -> None:
    """What could undo the isolation; an ordinary user has none to begin with, but in its own user namespace."""
    kept = KEPT_BY_ROOT if os.geteuid() == 0 else ()
    for number in range(NUM_CAPABILITIES):
        if number not in kept:
            _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # EINVAL: this kernel has fewer
    bits = sum(1 << number for number in kept)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(bits & 0xFFFFFFFF, bits & 0xFFFFFFFF, 0, bits >> 32, bits >> 32, 0)
    _check(_libc.capset(header, data), "cannot drop capabilities")
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "cannot set no_new_privs")
    _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or its children may not look at each other in /proc (CUDA IPC)


# --- mounts -----------------------------------------------------------------------------------------------------------


def mount(source: str | None, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    given = [None if each is None else os.fsencode(each) for each in (source, target, kind, data)]
    if _libc.mount(given[0], given[1], given[2], ctypes.c_ulong(flags), given[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {kind or source} on {target}: {os.strerror(number)}")


def unmount(target: str) -> None:
    _libc.umount2(os.fsencode(target), MNT_DETACH)


def make_read_only(target: str) -> None:
    """With all that is mounted below it."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), AT_RECURSIVE, attributes, ctypes.c_size_t(32)
    )
    _check(result, f"cannot make {target} read-only (Linux 5.12 or newer can)")


def change_root(folder: str) -> None:
    os.chdir(folder)
    _check(_libc.pivot_root(b".", b"."), "cannot change the root")
    _check(_libc.umount2(b".", MNT_DETACH), "cannot leave the old root")
    os.chdir("/")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise CannotIsolate(f"{what}: {os.strerror(ctypes.get_errno())}")
