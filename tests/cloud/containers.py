"""Containers of the image under runc, locked down as a cluster's restricted pods are. Needs root, runc and umoci.

`unpack` lays the image out once; `Container` runs its entry point with a role's arguments in a network namespace that
the caller made. Knows nothing of what runs inside.
"""

import copy
import json
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

USER_ID = 10001
REFUSED_CALLS = (
    "mbind set_mempolicy set_mempolicy_home_node get_mempolicy migrate_pages move_pages add_key bpf delete_module "
    "finit_module fsconfig fsmount fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup "
    "ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mount mount_setattr move_mount "
    "open_by_handle_at open_tree perf_event_open pivot_root process_madvise quotactl reboot request_key "
    "setdomainname sethostname setns settimeofday swapoff swapon syslog umount2 unshare userfaultfd vhangup"
)
"""What containerd's profile refuses without capabilities, the calls that bind memory among them."""

_MASKED = [
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/firmware",
]
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


@dataclass(frozen=True, slots=True)
class Volume:
    """A folder of this machine inside the container."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Pod:
    """What a pod's specification says of its container."""

    arguments: Sequence[str]
    entrypoint: Sequence[str] | None = None
    """Instead of the image's."""
    environment: Mapping[str, str] = field(default_factory=dict)
    volumes: Sequence[Volume] = ()
    network: Path | None = None
    """A network namespace, such as /run/netns/NAME; None: a new one without an interface that is up."""
    cpus: str | None = None
    """The cpuset, as "0-1"; None: all."""
    memory_bytes: int | None = None
    shm_bytes: int = 1 << 30
    hostname: str = "redoubt"


def unpack(layout: Path, folder: Path) -> Path:
    """Unpacks the image `layout`:redoubt to `folder`, with the configuration that umoci makes of the image's own.

    What is there already of the same image stays as it is.
    """
    index, unpacked = (layout / "index.json").read_text(), folder / "index.json"
    if not unpacked.exists() or unpacked.read_text() != index:
        shutil.rmtree(folder, ignore_errors=True)
        command = ["umoci", "unpack", "--image", f"{layout}:redoubt", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        unpacked.write_text(index)
    return folder


def bundle_config(image: Path, pod: Pod) -> dict[str, Any]:
    """The OCI runtime configuration of a pod; `image` is what `unpack` made.

    User, environment and entry point are the image's. No capabilities, no new privileges, a read-only root, tmpfs at
    /tmp and /dev/shm.
    """
    config: dict[str, Any] = copy.deepcopy(json.loads((image / "config.json").read_text()))
    process, linux = config["process"], config["linux"]
    process["terminal"] = False
    process["args"] = [*(pod.entrypoint if pod.entrypoint is not None else process["args"]), *pod.arguments]
    process["env"] = [*process["env"], *(f"{name}={value}" for name, value in pod.environment.items())]
    process["capabilities"] = {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")}
    process["noNewPrivileges"] = True
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    process["rlimits"] = [{"type": "RLIMIT_NOFILE", "soft": most_files, "hard": most_files}]
    config["root"] = {"path": str((image / "rootfs").absolute()), "readonly": True}
    config["hostname"] = pod.hostname
    config["mounts"] = _mounts(pod)
    linux["namespaces"] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    linux["namespaces"].append({"type": "network", **({"path": str(pod.network)} if pod.network else {})})
    linux["maskedPaths"], linux["readonlyPaths"] = _MASKED, _READ_ONLY
    linux["seccomp"] = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [
            {"names": REFUSED_CALLS.split(" "), "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
        ],
    }
    resources: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}], "pids": {"limit": 4096}}
    if pod.cpus is not None:
        resources["cpu"] = {"cpus": pod.cpus}
    if pod.memory_bytes is not None:
        resources["memory"] = {"limit": pod.memory_bytes}
    linux["resources"] = resources
    return config


def _mounts(pod: Pod) -> list[dict[str, Any]]:
    def mount(target: str, kind: str, *options: str) -> dict[str, Any]:
        return {"destination": target, "type": kind, "source": kind, "options": ["nosuid", *options]}

    mounts = [
        mount("/proc", "proc", "noexec", "nodev"),
        mount("/dev", "tmpfs", "strictatime", "mode=755", "size=65536k"),
        mount("/dev/pts", "devpts", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
        mount("/dev/shm", "tmpfs", "noexec", "nodev", "mode=1777", f"size={pod.shm_bytes}"),
        mount("/dev/mqueue", "mqueue", "noexec", "nodev"),
        mount("/sys", "sysfs", "noexec", "nodev", "ro"),
        mount("/sys/fs/cgroup", "cgroup", "noexec", "nodev", "relatime", "ro"),
        mount("/tmp", "tmpfs", "nodev", "mode=1777", "size=4g"),
    ]
    for volume in pod.volumes:
        options = ["rbind", "nosuid", "nodev", *(["ro"] if volume.read_only else [])]
        source = str(volume.source.resolve())
        mounts.append({"destination": volume.target, "type": "bind", "source": source, "options": options})
    return mounts


class Container:
    """A running container; its output is in `log`. Leaving the `with` block ends it."""

    def __init__(self, image: Path, pod: Pod, folder: Path, name: str) -> None:
        """folder: for its bundle, its log and runc's state; name: unique on this machine."""
        self.name = name
        self._state = folder / "runc"
        bundle = folder / name
        shutil.rmtree(bundle, ignore_errors=True)
        bundle.mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(bundle_config(image, pod), indent=1))
        self.log = bundle / "log"
        with self.log.open("wb") as log:
            command: list[str | Path] = ["runc", "--root", self._state, "run", "--bundle", bundle, name]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill(signal.SIGKILL)
            self.process.wait(60)
        subprocess.run(["runc", "--root", self._state, "delete", "--force", self.name], capture_output=True)

    def kill(self, number: signal.Signals) -> None:
        """Sends a signal to the entry point."""
        subprocess.run(["runc", "--root", self._state, "kill", self.name, str(number.value)], capture_output=True)

    def run(self, *command: str) -> str:
        """What a command inside prints, its errors too."""
        done = subprocess.run(
            ["runc", "--root", self._state, "exec", self.name, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout

    def wait(self, timeout_s: float) -> int:
        """The entry point's exit status. Raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout_s)

    def wait_for_text(self, text: str, timeout_s: float) -> None:
        """Returns when the log has the text. Raises TimeoutError, or RuntimeError if the container ends before."""
        deadline_s = time.monotonic() + timeout_s
        while text not in self.log.read_text(errors="replace"):
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{self.log.read_text()}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self.name} did not print {text!r}:\n{self.log.read_text()}")
            time.sleep(0.2)
