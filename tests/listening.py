"""On which addresses processes listen, as /proc has it."""

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port)).close()
    except OSError:
        return False
    return True


def listening_addresses(pids: Iterable[int]) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """One for each TCP socket; an IPv4 address within IPv6 as what it is."""
    return [_parsed(address) for address, _ in _listening(pids)]


def listening_ports(pids: Iterable[int]) -> set[int]:
    return {int(port, 16) for _, port in _listening(pids)}


def open_files(pids: Iterable[int]) -> set[str]:
    """Paths and sockets, as the links of /proc name them. Processes may end and files be closed meanwhile."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    found.add(str(link.readlink()))
    return found


def _listening(pids: Iterable[int]) -> list[tuple[str, str]]:
    """Address and port of each TCP socket, in hex."""
    opened = open_files(pids)
    return [
        (address, port)
        for table in ("tcp", "tcp6")
        for address, port, state, inode in _rows(Path(f"/proc/net/{table}"))
        if state == "0A" and f"socket:[{inode}]" in opened
    ]


def _rows(table: Path) -> list[tuple[str, str, str, str]]:
    """(local address in hex, port in hex, state, inode) of each socket."""
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    return [(*row[1].rpartition(":")[::2], row[3], row[9]) for row in rows]


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """/proc writes addresses as 32-bit words in the machine's (little-endian) order."""
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    ip = ipaddress.ip_address(b"".join(words))
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip
