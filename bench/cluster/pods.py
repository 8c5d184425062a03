"""Pods on this machine: network namespaces on a bridge of their own, each with its own processes, /tmp and host name.

What a pod runs is `redoubt` of this checkout, as the image's entry point runs it. Needs root, and Debian's iproute2 and
util-linux. Nothing outside the namespaces can be reached from them, and the other way round.
"""

import ctypes
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from bench.common import ROOT

_CLONE_NEWNET = 0x40000000
_NETWORK = "10.213.77"
_ALL_PROTOCOLS = 3
_IPV4 = b"\x08\x00"

Result = TypeVar("Result")


class Pod:
    """A running pod. Its log is a file outside of it."""

    def __init__(self, name: str, address: str, namespace: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self.address = address
        self.namespace = namespace
        self.log_path = log
        self._process = process

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def is_running(self) -> bool:
        """Whether its first process has not ended."""
        return self._process.poll() is None

    def terminate(self) -> None:
        """SIGTERM to the pod's first process, as a kubelet sends it."""
        os.kill(self._first_process(), signal.SIGTERM)

    def kill(self) -> None:
        """Ends the pod with all its processes at once."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float) -> int:
        """Waits for its end; returns the exit status."""
        return self._process.wait(timeout_s)

    def processes(self) -> dict[int, str]:
        """The command lines of the pod's processes by their ids outside of it."""
        found = {}
        own = Path(f"/proc/{self._first_process()}/ns/pid").readlink()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and (entry / "ns/pid").readlink() == own:
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return found

    def _first_process(self) -> int:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0])


class Network:
    """A bridge in a namespace of its own, and the namespaces of pods and of a client that are plugged into it."""

    def __init__(self, folder: Path, visible: Sequence[Path] = ()) -> None:
        """folder: for the pods' logs. visible: folders that pods see at their paths, also below /tmp."""
        self._folder = folder
        self._visible = [ROOT, *visible]
        self._id = secrets.token_hex(3)
        self._switch = f"rb{self._id}"
        self._namespaces: list[str] = []
        self._pods: list[Pod] = []
        self._hosts = 1
        self._add_namespace(self._switch)
        self._in(self._switch, "ip link add br0 type bridge")
        self._in(self._switch, "ip link set br0 up")
        self.client, self.client_address = self.plug_in("client")

    def close(self) -> None:
        """Ends all pods, and removes the namespaces."""
        for pod in self._pods:
            pod.kill()
        for name in self._namespaces:
            _run(f"ip netns delete {name}")

    def plug_in(self, name: str) -> tuple[str, str]:
        """A new namespace on the bridge, and its address: for a pod that somebody else runs there."""
        self._hosts += 1
        address, namespace, port = f"{_NETWORK}.{self._hosts}", f"r{self._id}{name}", f"p{self._hosts}"
        self._add_namespace(namespace)
        self._in(self._switch, f"ip link add {port} type veth peer name eth0 netns {namespace}")
        self._in(self._switch, f"ip link set {port} master br0 up")
        self._in(namespace, f"ip address add {address}/24 dev eth0")
        self._in(namespace, "ip link set eth0 up")
        self._in(namespace, "ip link set lo up")
        return namespace, address

    def start_pod(
        self, name: str, arguments: Sequence[str], *, cpus: str, environment: Mapping[str, str] | None = None
    ) -> Pod:
        """Runs `redoubt ARGUMENTS` in a new pod on these CPUs ("0", "0-1")."""
        namespace, address = self.plug_in(name)
        return self._start(name, namespace, address, arguments, cpus, environment or {})

    def restart_pod(
        self, pod: Pod, arguments: Sequence[str], *, cpus: str, environment: Mapping[str, str] | None = None
    ) -> Pod:
        """A new container in the place of a pod that has ended: same name, same address."""
        self._pods.remove(pod)
        return self._start(pod.name, pod.namespace, pod.address, arguments, cpus, environment or {})

    def join_pod(
        self,
        pod: Pod,
        name: str,
        arguments: Sequence[str],
        *,
        cpus: str,
        environment: Mapping[str, str] | None = None,
    ) -> Pod:
        """Another container at the address of a pod."""
        return self._start(name, pod.namespace, pod.address, arguments, cpus, environment or {})

    def _start(
        self,
        name: str,
        namespace: str,
        address: str,
        arguments: Sequence[str],
        cpus: str,
        environment: Mapping[str, str],
    ) -> Pod:
        log = self._folder / f"{name}.log"
        hidden = [path for path in self._visible if path.is_relative_to("/tmp") or path.is_relative_to("/dev/shm")]
        # Opened before, a file descriptor leads to a folder that the new /tmp hides.
        opened = [(number, shlex.quote(str(path))) for number, path in enumerate(hidden, start=3)]
        setup = " && ".join(
            [
                *(f"exec {number}<{path}" for number, path in opened),
                "mount -t tmpfs tmpfs /tmp",
                "mount -t tmpfs -o size=1g tmpfs /dev/shm",
                *(
                    f"mkdir -p {path} && mount --no-canonicalize --bind /proc/self/fd/{number} {path}"
                    for number, path in opened
                ),
                *(f"exec {number}<&-" for number, _ in opened),
                f"cd {shlex.quote(str(ROOT))}",
                "ip link set lo up",
                f"hostname {name}",
                'exec "$0" "$@"',
            ]
        )
        command = [
            *("ip", "netns", "exec", namespace),
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"),
            *("taskset", "--cpu-list", cpus, "sh", "-c", setup),
            *(sys.executable, "-m", "app.cli", *arguments),
        ]
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "REDOUBT_ISA") if key in os.environ}
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=kept | {"POD_IP": address, "PYTHONPATH": f"{ROOT}:{ROOT / 'verify'}", **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        pod = Pod(name, address, namespace, process, log)
        self._pods.append(pod)
        return pod

    def unplug(self, pod: Pod) -> None:
        """Cuts the pod off from the others."""
        self._in(pod.namespace, "ip link set eth0 down")

    def plug_in_again(self, pod: Pod) -> None:
        """Reconnects the pod after `unplug`."""
        self._in(pod.namespace, "ip link set eth0 up")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread's new sockets belong to the client's namespace."""
        with _namespace(self.client):
            yield

    def call(self, function: Callable[[], Result]) -> Result:
        """The function's result, computed in a thread of the client's namespace."""
        results: list[Result] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                with self.inside():
                    results.append(function())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    @contextmanager
    def capture(self) -> Iterator[list[tuple[str, str, bytes]]]:
        """Records what crosses the bridge: source, target and the packet's bytes after the IP header's addresses."""
        packets: list[tuple[str, str, bytes]] = []
        stop = threading.Event()
        ready = threading.Event()

        def record() -> None:
            with _namespace(self._switch):
                listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
            with listener:
                listener.settimeout(0.2)
                ready.set()
                while not stop.is_set():
                    with suppress(TimeoutError):
                        frame = listener.recv(1 << 17)
                        if frame[12:14] == _IPV4:
                            packets.append((socket.inet_ntoa(frame[26:30]), socket.inet_ntoa(frame[30:34]), frame[34:]))

        thread = threading.Thread(target=record)
        thread.start()
        ready.wait()
        try:
            yield packets
        finally:
            stop.set()
            thread.join()

    def _add_namespace(self, name: str) -> None:
        _run(f"ip netns add {name}")
        self._namespaces.append(name)

    def _in(self, namespace: str, command: str) -> None:
        _run(f"ip netns exec {namespace} {command}")


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> float:
    """How many seconds it took. Fails with `what`."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < timeout_s, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.2)
    return time.monotonic() - began_s


@contextmanager
def _namespace(name: str) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        target = os.open(f"/run/netns/{name}", os.O_RDONLY)
        try:
            if libc.setns(target, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(target)
        yield
        if libc.setns(before, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(before)


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)
