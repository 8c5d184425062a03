"""The image's one layer: the same tar, byte for byte, from the same files.

Sorted, one time for all, no owners' names, no set-user bits, and without what differs from build to build or that a
container does not need. Knows nothing of where the files come from.
"""

import re
import tarfile
from pathlib import Path

_LEFT_OUT = re.compile(
    r"(dev|proc|sys|run|tmp|work|var/cache|var/log|var/lib/apt|var/tmp)/.+"
    r"|etc/(machine-id|hostname|hosts|resolv\.conf|passwd-|group-|shadow-|gshadow-|subuid-|subgid-|apt|\.pwd\.lock)(/.*)?"
    r"|var/lib/(dpkg|systemd)/(.*-old|lock.*|triggers/Lock|catalog/.*)|boot|home|media|mnt|root/.+"
    r"|var/lib/dpkg/info/.*\.(preinst|postinst|prerm|postrm|triggers|templates|config)"
)
_MOUNTED_FILES = ("etc/hostname", "etc/hosts", "etc/resolv.conf")
"""A container's runtime puts its own over these; they must be there, as the root is read-only."""


def write_layer(source: Path, target: Path, epoch: int) -> int:
    """Writes the files of one tar to another, and returns how many bytes they have. epoch: Unix seconds."""
    total = 0
    with tarfile.open(source) as files, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as layer:
        members = {_name(member): member for member in files}
        for name in sorted({*members, *_MOUNTED_FILES}):
            if name == "." or (_LEFT_OUT.fullmatch(name) and name not in _MOUNTED_FILES):
                continue
            member = members.get(name)
            entry = tarfile.TarInfo(name)
            entry.mtime = epoch
            if member is None or name in _MOUNTED_FILES:
                layer.addfile(entry)
                continue
            entry.uid, entry.gid, entry.mode = member.uid, member.gid, member.mode & 0o1777
            if member.isdir() or member.issym():
                entry.type, entry.linkname = member.type, member.linkname
                layer.addfile(entry)
            elif member.isfile() or member.islnk():  # a hard link becomes a copy: its first name may come later
                data = files.extractfile(member)
                assert data is not None
                entry.size = members[_normal(member.linkname)].size if member.islnk() else member.size
                layer.addfile(entry, data)
                total += entry.size
            else:
                raise ValueError(f"{name}: neither a file nor a folder nor a link")
    return total


def _name(member: tarfile.TarInfo) -> str:
    return _normal(member.name)


def _normal(name: str) -> str:
    return name.removeprefix("./").rstrip("/") or "."
