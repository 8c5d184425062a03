"""Ports that are held: for processes of this user that share them, and for nobody else."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from app.launch.held_ports import HeldPorts, PortPool
from app.settings.knobs import SettingsError

SHARING = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)
OTHER_USER = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
for port in map(int, sys.argv[1:]):
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
            with socket.socket(family) as thief:
                for option in options:
                    thief.setsockopt(socket.SOL_SOCKET, option, 1)
                try:
                    thief.bind((host, port))
                    thief.listen()
                except OSError:
                    continue
                print(port, host, options)
"""


@pytest.fixture
def held() -> Iterator[HeldPorts]:
    held = HeldPorts(31500, 3)
    yield held
    held.close()


def listening(port: int, *options: int) -> socket.socket:
    made = socket.socket()
    try:
        for option in options:
            made.setsockopt(socket.SOL_SOCKET, option, 1)
        made.bind(("127.0.0.1", port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


def others_get(ports: range) -> str:
    """What a process of another user can listen on."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    command = [sys.executable, "-I", "-c", OTHER_USER, *map(str, ports)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_another_user_gets_none_of_them(held: HeldPorts) -> None:
    assert others_get(held.ports) == ""
    first = held.ports[0]
    with listening(first, *SHARING) as ingress:
        with socket.create_connection(("127.0.0.1", first)), ingress.accept()[0]:
            assert others_get(held.ports) == ""
        assert others_get(held.ports) == ""
    assert others_get(held.ports) == ""  # the ingress is gone


def test_without_a_holder_another_user_gets_them(held: HeldPorts) -> None:
    """So the test above can fail."""
    held.close()
    assert str(held.ports[0]) in others_get(held.ports)


def test_a_process_of_this_user_listens_and_comes_back(held: HeldPorts) -> None:
    port = held.ports[1]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    for _ in range(2):
        with listening(port, *SHARING) as ingress, socket.create_connection(("127.0.0.1", port)):
            ingress.accept()[0].close()


def test_two_services_of_one_user_hold_different_ports(held: HeldPorts) -> None:
    with listening(held.ports[-1] + 3):
        other = HeldPorts(held.ports[0], 3)
    try:
        assert len(other.ports) == 3
        assert other.ports[0] > held.ports[-1] + 3
    finally:
        other.close()
    with pytest.raises(OSError, match="in use"):
        listening(held.ports[0], socket.SO_REUSEADDR)


def test_what_a_ray_gave_back_the_next_one_gets_and_nobody_else() -> None:
    pool = PortPool()
    first, second = pool.take(3), pool.take(3)
    assert not set(first.ports) & set(second.ports)
    pool.give_back(first)
    larger = pool.take(4)
    assert larger is not first
    assert pool.take(2) is first
    for held in (first, second, larger):
        pool.give_back(held)
    pool.close()
    listening(first.ports[0]).close()


def test_no_room() -> None:
    with pytest.raises(SettingsError, match=r"no 5 ports one after another are free from 32766 to 32767"):
        HeldPorts(32766, 5)
