"""What Kata's runtime asks the agent in the guest for, to start the containers of a pod: requests in our own words.

After src/runtime/virtcontainers and genpolicy's tests of Kata Containers: containerd, images pulled in the guest, no
shared file system. Names that the host draws are fixed here.
"""

import json
from typing import Any

from kuberay.image.root_files import ENVIRONMENT, WORKING_FOLDER
from tests.cloud.manifests.kubectl import Document

SANDBOX = "5" * 64
CONTAINER = "c" * 64
SHARED = "/run/kata-containers/shared/containers"
EPHEMERAL = "/run/kata-containers/sandbox/ephemeral"
POD_ADDRESS = "10.244.1.7"
POD_NAME = "redoubt-x7k2p-pod-abcde"
SECRET = "of-a-secret-0123456789"
_READ_ONLY_PATHS = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
_MASKED_PATHS = ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi", "/sys/firmware"]
_SYSTEM_MOUNTS = {
    "/proc": ("proc", "proc", ["nosuid", "noexec", "nodev"]),
    "/dev": ("tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
    "/dev/pts": ("devpts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
    "/dev/mqueue": ("mqueue", "mqueue", ["nosuid", "noexec", "nodev"]),
    "/sys": ("sysfs", "sysfs", ["nosuid", "noexec", "nodev", "ro"]),
    "/sys/fs/cgroup": ("cgroup", "cgroup", ["nosuid", "noexec", "nodev", "relatime", "ro"]),
}
_KUBERNETES = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_SERVICE_PORT_HTTPS": "443",
    "KUBERNETES_PORT": "tcp://10.96.0.1:443",
    "KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443",
    "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
    "KUBERNETES_PORT_443_TCP_PORT": "443",
    "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1",
}


def create_container(pod: Document, container: Any) -> Any:
    """CreateContainerRequest for a container of the pod."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    security = {**pod["spec"]["securityContext"], **container["securityContext"]}
    devices = [each["devicePath"] for each in container.get("volumeDevices", [])]
    request = _request(CONTAINER, pod)
    oci = request["OCI"]
    oci["Annotations"] |= {
        "io.katacontainers.pkg.oci.container_type": "pod_container",
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": container["name"],
        "io.kubernetes.cri.image-name": container["image"],
    }
    oci["Mounts"] += _host_files(CONTAINER)
    request["storages"] = [_image(CONTAINER, container["image"], "container")]
    for mount in container.get("volumeMounts", []):
        if "configMap" in volumes[mount["name"]]:
            source = copy_file(mount["name"])["path"]
            oci["Mounts"].append(_mount(mount["mountPath"], "bind", source, ["rbind", "rprivate", "ro"]))
            continue
        source = f"{EPHEMERAL}/{mount['name']}"
        oci["Mounts"].append(_mount(mount["mountPath"], "bind", source, ["rbind", "rprivate", "rw"]))
        request["storages"].append(
            {
                **{"driver": "ephemeral", "driver_options": [], "source": "tmpfs", "fstype": "tmpfs"},
                **{"options": [f"fsgid={security['fsGroup']}"], "mount_point": source, "fs_group": None},
                "shared": False,
            }
        )
    for path in devices:
        request["devices"].append({"id": "02", "type_": "blk", "vm_path": "", "container_path": path, "options": []})
        oci["Linux"]["Devices"].append({"Path": path, "Type": "b", "Major": 254, "Minor": 16, "UID": 10001})
    process = oci["Process"]
    process["Args"] = [*(container.get("command") or ["redoubt"]), *container.get("args", [])]
    process["Env"] = [f"{name}={value}" for name, value in _environment(pod, container).items()]
    process["User"] = {
        "UID": security["runAsUser"],
        "GID": security["runAsGroup"],
        "AdditionalGids": [security["fsGroup"]],
        "Username": "",
    }
    return request


def create_pause(pod: Document) -> Any:
    """CreateContainerRequest for the pod's first container, which holds its network."""
    request = _request(SANDBOX, pod)
    oci = request["OCI"]
    oci["Annotations"] |= {
        "io.katacontainers.pkg.oci.container_type": "pod_sandbox",
        "io.kubernetes.cri.container-type": "sandbox",
        "io.kubernetes.cri.sandbox-log-directory": f"/var/log/pods/redoubt_{POD_NAME}_0",
        "nerdctl/network-namespace": "/var/run/netns/cni-1",
    }
    oci["Mounts"] += [
        _mount("/dev/shm", "bind", "/run/kata-containers/sandbox/shm", ["rbind"]),
        _host_files(SANDBOX)[2],
    ]
    oci["Linux"]["Sysctl"] = {"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647"}
    # What containerd gives every sandbox. The agent replaces the whole process.
    capabilities = {kind: ["CAP_CHOWN", "CAP_KILL"] for kind in ("Bounding", "Effective", "Permitted")}
    oci["Process"] |= {"Args": ["/pause"], "Cwd": "/", "Env": ["PATH=/usr/bin:/bin"], "Capabilities": capabilities}
    request["storages"] = [_image(SANDBOX, "registry.k8s.io/pause:3.10", "sandbox")]
    return request


def create_sandbox() -> Any:
    """CreateSandboxRequest, the first of all."""
    shm = {
        **{"driver": "ephemeral", "driver_options": [], "source": "shm", "fstype": "tmpfs", "fs_group": None},
        "options": ["noexec", "nosuid", "nodev", "mode=1777", "size=67108864"],
        "mount_point": "/run/kata-containers/sandbox/shm",
    }
    return {"hostname": POD_NAME, "dns": [], "storages": [shm], "sandbox_pidns": False, "guest_hook_path": ""}


def copy_file(name: str, container: str = CONTAINER) -> Any:
    """CopyFileRequest for one of the files that the host writes for a container."""
    return {"path": f"{SHARED}/{container}-{'d' * 16}-{name}", "file_type": "Regular", "file_size": 100}


def _request(container_id: str, pod: Document) -> Any:
    return {
        "container_id": container_id,
        "exec_id": "",
        "string_user": None,
        "devices": [],
        "storages": [],
        "sandbox_pidns": False,
        "shared_mounts": [],
        "OCI": {
            "Version": "1.2.0",
            "Hooks": None,
            "Solaris": None,
            "Windows": None,
            "Hostname": "",
            "Root": {"Path": f"/run/kata-containers/{container_id}/rootfs", "Readonly": True},
            "Annotations": {
                "io.katacontainers.pkg.oci.bundle_path": f"/run/containerd/k8s.io/{container_id}",
                "io.kubernetes.cri.sandbox-id": SANDBOX,
                "io.kubernetes.cri.sandbox-name": POD_NAME,
                "io.kubernetes.cri.sandbox-namespace": "redoubt",
                **{
                    name: value
                    for name, value in pod["metadata"].get("annotations", {}).items()
                    if name.startswith("io.katacontainers.")
                },
            },
            "Mounts": [_mount(path, *rest) for path, rest in _SYSTEM_MOUNTS.items()],
            "Linux": {
                **{"GIDMappings": [], "UIDMappings": [], "IntelRdt": None, "MountLabel": "", "RootfsPropagation": ""},
                **{"Seccomp": None, "Sysctl": {}, "Devices": []},
                "Namespaces": [{"Type": kind, "Path": ""} for kind in ("ipc", "uts", "mount")],
                "MaskedPaths": list(_MASKED_PATHS),
                "ReadonlyPaths": list(_READ_ONLY_PATHS),
                "Resources": {"BlockIO": None, "Devices": [], "Network": None, "Pids": None, "Memory": {"Limit": 1}},
            },
            "Process": {
                "Cwd": WORKING_FOLDER,
                "Terminal": False,
                "NoNewPrivileges": True,
                "SelinuxLabel": "",
                "ApparmorProfile": "",
                "Capabilities": {kind: [] for kind in ("Ambient", "Bounding", "Effective", "Inheritable", "Permitted")},
                "User": {"UID": 65535, "GID": 65535, "AdditionalGids": [65535], "Username": ""},
            },
        },
    }


def _mount(path: str, kind: str, source: str, options: list[str]) -> Any:
    return {"destination": path, "type_": kind, "source": source, "options": list(options)}


def _host_files(container_id: str) -> list[Any]:
    files = {"hosts": "/etc/hosts", "termination-log": "/dev/termination-log", "resolv.conf": "/etc/resolv.conf"}
    return [
        _mount(path, "bind", copy_file(name, container_id)["path"], ["rbind", "rprivate", "rw"])
        for name, path in {**files, "hostname": "/etc/hostname"}.items()
    ]


def _image(container_id: str, name: str, kind: str) -> Any:
    metadata = {"metadata": {"io.kubernetes.cri.container-type": kind, "io.kubernetes.cri.image-name": name}}
    return {
        **{"driver": "image_guest_pull", "source": name, "fstype": "overlay", "fs_group": None, "shared": False},
        "driver_options": [f"image_guest_pull={json.dumps(metadata)}"],
        "options": [],
        "mount_point": f"/run/kata-containers/{container_id}/rootfs",
    }


def _environment(pod: Document, container: Any) -> dict[str, str]:
    metadata = pod["metadata"]
    fields = {
        "status.podIP": POD_ADDRESS,
        "metadata.name": POD_NAME,
        "metadata.namespace": metadata.get("namespace", "redoubt"),
        **{f"metadata.labels['{name}']": value for name, value in metadata["labels"].items()},
    }
    own = {}
    for each in container.get("env", []):
        field = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        own[each["name"]] = fields[field] if field else each.get("value", SECRET)
    return {**ENVIRONMENT, "HOSTNAME": POD_NAME, **_KUBERNETES, **own}
