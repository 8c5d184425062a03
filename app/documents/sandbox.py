"""What the kernel refuses a process that reads a hostile file: Landlock, and a filter of system calls.

Both last until the process ends, and neither needs a privilege. The filter alone is enough. Landlock alone keeps files'
content and names from the process, but not their times and modes, and only later versions their truncation and signals.
"""

import ctypes
import errno
import os
import platform
import struct
from typing import Final

_NO_NEW_PRIVILEGES: Final = 38
_SET_SECCOMP: Final = 22
_FILTER: Final = 2
_CREATE_RULESET: Final = 444
_RESTRICT_SELF: Final = 446
_VERSION: Final = 1

_FILE_RIGHTS: Final = ((1, 13), (2, 14), (3, 15), (5, 16))
"""How many rights on files there are from each version of Landlock on."""
_NET_SINCE: Final = 4
SCOPES_SINCE: Final = 6
"""The version of Landlock (Linux 6.12) that keeps signals from other processes too."""

_X86_64: Final = 0xC000_003E
_ALLOWED: Final = {
    "read": 0,
    "write": 1,
    "close": 3,
    "fstat": 5,
    "lseek": 8,
    "mmap": 9,
    "mprotect": 10,
    "munmap": 11,
    "brk": 12,
    "rt_sigaction": 13,
    "rt_sigprocmask": 14,
    "rt_sigreturn": 15,
    "readv": 19,
    "writev": 20,
    "sched_yield": 24,
    "mremap": 25,
    "madvise": 28,
    "nanosleep": 35,
    "getpid": 39,
    "exit": 60,
    "gettimeofday": 96,
    "getrusage": 98,
    "sysinfo": 99,
    "times": 100,
    "sigaltstack": 131,
    "gettid": 186,
    "time": 201,
    "futex": 202,
    "sched_getaffinity": 204,
    "restart_syscall": 219,
    "clock_gettime": 228,
    "clock_getres": 229,
    "clock_nanosleep": 230,
    "exit_group": 231,
    "getcpu": 309,
    "getrandom": 318,
    "membarrier": 324,
}
"""Numbers of x86-64: what computing in memory needs, and the pipes that the process has."""
_TGKILL: Final = 234
"""To the process itself only: `abort` needs it, and its signal says how the process ended."""

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF_0000, 0x0005_0000 | errno.EPERM
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
"""Where they stand in the kernel's `seccomp_data`."""


class _Program(ctypes.Structure):
    """The kernel's `sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def deny_files() -> int:
    """Lets the process open, make, rename and remove no file, and as much else as this kernel's Landlock can deny.

    Returns the version of Landlock that holds it; 0: none does (before Linux 5.13).
    """
    system = _libc()
    version = system.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return 0
    rights = max(count for since, count in _FILE_RIGHTS if since <= version)
    handled = struct.pack("<Q", (1 << rights) - 1)
    handled += struct.pack("<Q", 3) if version >= _NET_SINCE else b""  # TCP: bind, connect
    handled += struct.pack("<Q", 3) if version >= SCOPES_SINCE else b""  # abstract sockets and signals of others
    ruleset = system.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    if ruleset < 0:
        return 0
    try:  # no rule allows any of what is handled
        is_held = _without_privileges(system) and system.syscall(_RESTRICT_SELF, ruleset, 0) == 0
        return version if is_held else 0
    finally:
        os.close(ruleset)


def deny_system_calls() -> bool:
    """Lets the process make only the system calls in `_ALLOWED`: others fail with EPERM.

    Returns False on other processors than x86-64, and if the kernel has no filters.
    """
    system = _libc()
    if platform.machine() != "x86_64" or struct.calcsize("P") != 8 or not _without_privileges(system):
        return False
    code = _instructions(os.getpid())
    program = _Program(len(code) // 8, code)
    return bool(system.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER), ctypes.byref(program), 0, 0) == 0)


def _instructions(own_pid: int) -> bytes:
    """Returns the filter as the kernel's `sock_filter`s of 8 bytes each."""
    made = [_instruction(_LOAD, _ARCHITECTURE_AT), *_unless_equal_refuse(_X86_64), _instruction(_LOAD, _NUMBER_AT)]
    for number in _ALLOWED.values():
        made += [_instruction(_EQUAL, number, otherwise=1), _instruction(_RETURN, _ALLOW)]
    made += _unless_equal_refuse(_TGKILL)
    for place, half in ((_FIRST_ARGUMENT_AT, own_pid), (_FIRST_ARGUMENT_AT + 4, 0)):
        made += [_instruction(_LOAD, place), *_unless_equal_refuse(half)]
    return b"".join([*made, _instruction(_RETURN, _ALLOW)])


def _unless_equal_refuse(value: int) -> list[bytes]:
    return [_instruction(_EQUAL, value, then=1), _instruction(_RETURN, _REFUSE)]


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """Returns one of the filter. then, otherwise: how many instructions a comparison skips."""
    return struct.pack("<HBBI", code, then, otherwise, value)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _without_privileges(system: ctypes.CDLL) -> bool:
    return bool(system.prctl(_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), 0, 0, 0) == 0)
