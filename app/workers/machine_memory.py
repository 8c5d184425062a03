"""The memory that this process may use: total, available, and whether another worker fits in."""

import os
from pathlib import Path
from typing import Final

from app.model_folder import WEIGHTS
from app.sealing.sealed_model import SealedModel

_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMORY: Final = Path("/proc/meminfo")
_OWN_CGROUP: Final = Path("/proc/self/cgroup")
_PROCESS_BYTES: Final = 512 << 20
"""What a worker needs beside weights and cache: its libraries, and a step's activations."""


class NoRoomError(RuntimeError):
    """There is not enough memory for a worker."""


def machine_memory_bytes(cgroup: Path = _CGROUP, own: Path = _OWN_CGROUP) -> int:
    """The machine's memory, or the lowest limit of this process' cgroups if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in _cgroups(cgroup, own):
        try:
            limits.append(int((folder / "memory.max").read_text()))
        except (OSError, ValueError):  # no limit
            continue
    return min(limits)


def available_memory_bytes(meminfo: Path = _MEMORY, cgroup: Path = _CGROUP, own: Path = _OWN_CGROUP) -> int:
    """Memory available without swapping, as the kernel says, or what the process' cgroups' limits leave.

    The page cache counts as available, because the kernel gives it back.
    """
    lines = meminfo.read_text().splitlines()
    left = [next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))]
    for folder in _cgroups(cgroup, own):
        try:
            limit = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            left.append(max(0, limit - used + int(statistics["active_file"]) + int(statistics["inactive_file"])))
        except (OSError, ValueError, KeyError):  # no limit
            continue
    return min(left)


def _cgroups(root: Path, own: Path) -> list[Path]:
    """The folders of the process' cgroup (v2) and its ancestors; each may have a limit."""
    try:
        paths = [line.removeprefix("0::").strip("/") for line in own.read_text().splitlines() if line.startswith("0::")]
    except OSError:
        paths = []
    inner = Path(paths[0] if paths else "")
    return [root / folder for folder in (inner, *inner.parents)]


def needed_bytes(model: Path | SealedModel, kv_bytes: int) -> int:
    """The most memory that a worker with these files and this KV cache takes."""
    weights = model.size(WEIGHTS) if isinstance(model, SealedModel) else _size(model / WEIGHTS)
    return weights + kv_bytes + _PROCESS_BYTES


def check_room_beside(model: Path | SealedModel, kv_bytes: int, available_bytes: int) -> None:
    """Raises NoRoomError unless another worker with these files and this KV cache fits in the available memory."""
    needed = needed_bytes(model, kv_bytes)
    if needed > available_bytes:
        sizes = f"{needed / 1e9:.1f} GB, and {available_bytes / 1e9:.1f} GB are left here"
        raise NoRoomError(
            f"a new worker beside the one that it replaces takes up to {sizes}. The old one goes on as it was. Give the"
            " machine more memory, or set worker.surge to false: then the old one ends before the new one starts, and"
            " requests wait meanwhile"
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
