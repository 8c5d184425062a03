"""The agent's policy lets the overlays' pods start, and nothing that differs from them."""

import json
import tomllib
from typing import Any

import pytest

from tests.cloud.manifests.confidential import OVERLAYS, Made, made, rendered
from tests.cloud.manifests.edits import DELETE, Edit, at, edited
from tests.cloud.manifests.kata_requests import (
    CONTAINER,
    EPHEMERAL,
    SANDBOX,
    SHARED,
    copy_file,
    create_container,
    create_pause,
    create_sandbox,
)
from tests.cloud.manifests.kubectl import Document, find
from tests.cloud.manifests.operator_pods import pods
from tests.cloud.manifests.rego import answer

POD_KINDS = [("confidential-single", "service"), ("confidential", "head"), ("confidential", "numa-node")]
OTHER_DIGEST = f"sha256:{'b' * 64}"
DEVICE = {"id": "03", "type_": "blk", "vm_path": "", "container_path": "/dev/other", "options": []}


def policy(of: Made) -> str:
    """The agent's, as the guest finds it."""
    return str(tomllib.loads(of.initdata.decode())["data"]["policy.rego"])


def allows(of: Made, name: str, request: Any) -> bool:
    return answer(policy(of), f"data.agent_policy.{name}", request)


def worker_request() -> Any:
    """That of the container with everything: a device, volumes, and variables of KubeRay's."""
    pod = made("confidential").pods()["numa-node"]
    return create_container(pod, pod["spec"]["containers"][0])


def creates(request: Any) -> bool:
    return allows(made("confidential"), "CreateContainerRequest", request)


@pytest.mark.parametrize(("overlay", "kind"), POD_KINDS)
def test_the_pods_start(overlay: str, kind: str) -> None:
    pod = made(overlay).pods()[kind]
    assert allows(made(overlay), "CreateSandboxRequest", create_sandbox())
    assert allows(made(overlay), "CreateContainerRequest", create_pause(pod))
    (container,) = pod["spec"]["containers"]
    assert allows(made(overlay), "CreateContainerRequest", create_container(pod, container))


def test_nothing_of_one_overlay_starts_in_the_other() -> None:
    for overlay, kind in POD_KINDS:
        pod = made(overlay).pods()[kind]
        (other,) = set(OVERLAYS) - {overlay}
        assert not allows(made(other), "CreateContainerRequest", create_container(pod, pod["spec"]["containers"][0]))


def test_what_the_operator_would_add_does_not_start() -> None:
    """wait-gcs-ready is a shell with a command of the operator's."""
    worker = pods(find(made("confidential").documents, "RayService"))["numa-node"]
    (waiting,) = worker["spec"]["initContainers"]
    assert not creates(create_container(worker, waiting))


def variable(text: str) -> Edit:
    """Adds a variable, in place of the one that it names."""

    def edit(request: Document) -> None:
        process = request["OCI"]["Process"]
        kept = [each for each in process["Env"] if each.partition("=")[0] != text.partition("=")[0]]
        process["Env"] = [*kept, text]

    return edit


def without(name: str) -> Edit:
    def edit(request: Document) -> None:
        process = request["OCI"]["Process"]
        assert any(each.startswith(f"{name}=") for each in process["Env"])
        process["Env"] = [each for each in process["Env"] if not each.startswith(f"{name}=")]

    return edit


def annotated(name: str, value: str) -> Edit:
    return lambda request: request["OCI"]["Annotations"].update({name: value})


def mount(path: str, **changes: Any) -> Edit:
    """Changes the mount at this path."""

    def edit(request: Document) -> None:
        (found,) = [each for each in request["OCI"]["Mounts"] if each["destination"] == path]
        found.update(changes)

    return edit


def option(metadata: dict[str, str]) -> str:
    return f"image_guest_pull={json.dumps({'metadata': metadata})}"


def rooted(path: str) -> Edit:
    """The container's root is there, and the image too."""

    def edit(request: Document) -> None:
        request["OCI"]["Root"]["Path"] = request["storages"][0]["mount_point"] = path

    return edit


def also_as_a_disk(request: Document) -> None:
    request["storages"].append({**request["storages"][0], "driver": "blk"})


ENV = "OCI.Process.Env"
MOUNTED = ("/tmp", "/etc/resolv.conf", "/collateral", "/dev/mqueue")
EXTRA_MOUNT = {"destination": "/usr/local", "type_": "bind", "source": f"{SHARED}/evil", "options": ["rbind", "ro"]}
HOSTILE: dict[str, Edit] = {
    "another image": at("storages.0.source", f"registry.example.com:5000/team/redoubt@{OTHER_DIGEST}"),
    "an image by its tag": at("storages.0.source", "registry.example.com:5000/team/redoubt:1.0"),
    "two digests": at("storages.0.source", f"evil@sha256:{'a' * 64}@{OTHER_DIGEST}"),
    "no image": at("storages.0", DELETE),
    "two images": at(
        "storages.-", {"driver": "image_guest_pull", "fstype": "overlay", "source": "x", "mount_point": "/x"}
    ),
    "an image somewhere else": at("storages.0.mount_point", f"/run/kata-containers/{SANDBOX}/rootfs"),
    "a further image as a disk": also_as_a_disk,
    "an image of another kind": at("storages.0.fstype", "ext4"),
    "an image with options": at("storages.0.options", ["lowerdir=/"]),
    "an image for another group": at("storages.0.fs_group", {"group_id": 0}),
    "another option of the image": at("storages.0.driver_options", ['image_guest_pul_={"metadata": {}}']),
    "pause instead of the image": at(
        "storages.0.driver_options", [option({"io.kubernetes.cri.container-type": "sandbox"})]
    ),
    "a root from a disk": at("storages.0.driver", "blk"),
    "other arguments": at("OCI.Process.Args", ["redoubt", "node", "head"]),
    "one more argument": at("OCI.Process.Args.-", "--verbose"),
    "a shell": at("OCI.Process.Args", ["/bin/bash", "-c", "id"]),
    "another folder": at("OCI.Process.Cwd", "/tmp"),
    "LD_PRELOAD": variable("LD_PRELOAD=/tmp/evil.so"),
    "PYTHONPATH": variable("PYTHONPATH=/tmp"),
    "a variable of Ray's": variable("RAY_REDIS_ADDRESS=evil:6379"),
    "TLS of Ray's off": variable("RAY_USE_TLS=0"),
    "another address of Ray's": variable("RAY_ADDRESS=evil:1"),
    "PATH": variable("PATH=/tmp:/usr/bin"),
    "another configuration": variable("REDOUBT_SERVE_CONFIG=applications: []"),
    "no configuration": without("REDOUBT_SERVE_CONFIG"),
    "no evidence": without("REDOUBT_EVIDENCE"),
    "soft evidence": variable("REDOUBT_EVIDENCE=soft"),
    "soft evidence allowed": variable("REDOUBT_ALLOW_SOFT_EVIDENCE=1"),
    "another name of the image": variable("REDOUBT_IMAGE=evil"),
    "a variable twice": at(f"{ENV}.-", "HOSTNAME=again"),
    "a second configuration": at(f"{ENV}.-", "REDOUBT_SERVE_CONFIG=applications: []"),
    "a host name with more lines": variable("HOSTNAME=a\nLD_PRELOAD=/tmp/evil.so"),
    "an address for another variable": variable("EVIL_X=10.0.0.1"),
    "an address that is none": variable("POD_IP=evil.example.com"),
    "a variable without a value": at(f"{ENV}.-", "LD_PRELOAD"),
    "root": at("OCI.Process.User.UID", 0),
    "root's group": at("OCI.Process.User.GID", 0),
    "another user by name": at("OCI.Process.User.Username", "root"),
    "a further group": at("OCI.Process.User.AdditionalGids.-", 0),
    "capabilities": at("OCI.Process.Capabilities.Bounding", ["CAP_SYS_ADMIN"]),
    "more privileges": at("OCI.Process.NoNewPrivileges", False),
    "a terminal": at("OCI.Process.Terminal", True),
    "a writable root": at("OCI.Root.Readonly", False),
    "another root": at("OCI.Root.Path", "/"),
    "a root outside": rooted(f"/run/kata-containers/../{CONTAINER}/rootfs"),
    "a root that is the guest's": rooted("/"),
    "a further mount": at("OCI.Mounts.-", EXTRA_MOUNT),
    "a mount over the image": mount("/tmp", destination="/opt/redoubt"),
    "a mount twice": at(
        "OCI.Mounts.-", {"destination": "/tmp", "type_": "bind", "source": f"{EPHEMERAL}/tmp", "options": []}
    ),
    "the sandbox's memory over the image": at(
        "OCI.Mounts.-",
        {
            "destination": "/opt/redoubt",
            "type_": "bind",
            "source": "/run/kata-containers/sandbox/shm",
            "options": ["rbind"],
        },
    ),
    "memory from elsewhere": mount("/dev/shm", source="/run/kata-containers/sandbox"),
    **{f"{path} of another kind": mount(path, type_="overlay") for path in MOUNTED},
    **{f"{path} with an option": mount(path, options=["rbind", "exec"]) for path in MOUNTED},
    "the kernel's files from somewhere": mount("/proc", source="/dev/sda"),
    "another of the host's files": mount("/etc/hosts", source=f"{SHARED}/{CONTAINER}-{'d' * 16}-termination-log"),
    "the guest's own files": mount("/tmp", source="/"),
    "a volume from the host": mount("/tmp", source=f"{SHARED}/{CONTAINER}-{'d' * 16}-tmp"),
    "the guest's hosts file": mount("/etc/hosts", source="/etc/shadow"),
    "a path that leads out": mount("/etc/hosts", source=f"{SHARED}/{CONTAINER}-{'d' * 16}-../../x-hosts"),
    "the kernel's files from a disk": mount("/proc", type_="ext4"),
    "a mount with a device": mount("/dev/mqueue", options=["dev", "exec"]),
    "a volume on a disk": at("storages.1", {"driver": "blk", "mount_point": f"{EPHEMERAL}/tmp", "source": "02"}),
    "a volume of another kind": at("storages.1.driver", "local"),
    "a volume from a folder": at("storages.1.source", "/etc"),
    "a volume with a file system": at("storages.1.fstype", "ext4"),
    "a volume somewhere else": at("storages.1.mount_point", "/run/kata-containers/sandbox/ephemeral/other"),
    "a volume with a key of the host's": at("storages.1.driver_options", ["encryption_key=evil"]),
    "a volume for another group": at("storages.1.options", ["fsgid=0"]),
    "a further storage": at("storages.-", {"driver": "virtio-fs", "source": "kataShared", "mount_point": SHARED}),
    "a further device": at("devices.-", DEVICE),
    "a disk in the container": at("OCI.Linux.Devices.-", {"Path": "/dev/sda", "Type": "b"}),
    "a device in the container": at("OCI.Linux.Devices.-", {"Path": "/dev/mem", "Type": "c"}),
    "the model's device as another kind": at("devices.0.type_", "vfio-pci"),
    "a character device as the model": at("OCI.Linux.Devices.0.Type", "c"),
    "all devices": at("OCI.Linux.Resources.Devices", [{"Allow": True, "Access": "rwm"}]),
    "a hook": at("OCI.Hooks", {"Prestart": [{"Path": "/tmp/evil"}]}),
    "a shared mount": at("shared_mounts", [{"name": "x", "src_ctr": CONTAINER, "src_path": "/tmp"}]),
    "processes of the pod": at("sandbox_pidns", True),
    "the guest's processes": at("OCI.Linux.Namespaces.-", {"Type": "pid", "Path": "/proc/1/ns/pid"}),
    "the collateral from elsewhere": mount("/collateral", source=f"{SHARED}/{CONTAINER}-{'d' * 16}-hosts"),
    "the collateral as a part of the guest": mount("/collateral", source="/etc"),
    "a collateral to write to": mount("/collateral", options=["rbind", "rprivate", "rw"]),
    "the collateral over the image": mount("/collateral", destination="/usr/local/lib"),
    "no mounts of its own": at("OCI.Linux.Namespaces.2", DELETE),
    "another namespace": at("OCI.Linux.Namespaces.-", {"Type": "user", "Path": ""}),
    "another user's numbers": at("OCI.Linux.UIDMappings", [{"ContainerID": 0, "HostID": 0, "Size": 1}]),
    "calls of the kernel's that do nothing": at("OCI.Linux.Seccomp", {"DefaultAction": "SCMP_ACT_ERRNO"}),
    "output that nobody asks for": at("stdout_port", 1025),
    "a setting of the kernel's": at("OCI.Linux.Sysctl", {"kernel.core_pattern": "|/tmp/evil"}),
    "nothing hidden": at("OCI.Linux.MaskedPaths", []),
    "propagation": at("OCI.Linux.RootfsPropagation", "shared"),
    "an SELinux label": at("OCI.Process.SelinuxLabel", "unconfined_u:unconfined_r:unconfined_t:s0"),
    "another name": annotated("io.kubernetes.cri.container-name", "ray-head"),
    "a device by annotation": annotated("cdi.k8s.io/vfio17", "nvidia.com/gpu=0"),
    "a pod of CRI-O's": annotated("io.kubernetes.cri-o.ContainerType", "sandbox"),
    "a sandbox of this name": annotated("io.kubernetes.cri.container-type", "sandbox"),
}


def test_the_request_itself_is_allowed() -> None:
    assert creates(worker_request())


@pytest.mark.parametrize("edit", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_request_is_denied(edit: Edit) -> None:
    before = worker_request()
    after = edited(before, edit)
    assert after != before
    assert not creates(after)


@pytest.mark.parametrize(
    "edit",
    [
        at("storages.0.source", f"mirror.example.com/redoubt@sha256:{'a' * 64}"),
        at("storages.0.driver_options", []),
        variable("RAY_ADDRESS=redoubt-other-head-svc.redoubt.svc.cluster.local:6379"),
        variable("POD_IP=fd00::7"),
        without("HOSTNAME"),
        mount("/etc/hostname", options=["rbind", "rprivate", "ro"]),
        mount("/sys/fs/cgroup", options=["ro", "nosuid", "nsdelegate", "memory_recursiveprot"]),
        at("OCI.Linux.Namespaces.-", {"Type": "cgroup", "Path": ""}),
        at("storages.1.options", []),
        at("OCI.Hooks", DELETE),
    ],
)
def test_what_differs_from_host_to_host_is_allowed(edit: Edit) -> None:
    assert creates(edited(worker_request(), edit))


PAUSE_OPTION = "storages.0.driver_options"
HOSTILE_PAUSE: dict[str, Edit] = {
    "an image of the host's": at(PAUSE_OPTION, [option({"io.kubernetes.cri.container-type": "container"})]),
    "an image that says nothing": at(PAUSE_OPTION, [option({})]),
    "no option": at(PAUSE_OPTION, []),
    "two options": at(PAUSE_OPTION, [option({"io.kubernetes.cri.container-type": "sandbox"}), option({})]),
    "an image that is called pause": lambda request: request["storages"][0].update(
        {"source": "pause", "driver_options": [option({"io.kubernetes.cri.container-type": "container"})]}
    ),
    "pause on a disk": also_as_a_disk,
    "pause of another kind": at("storages.0.fstype", "ext4"),
    "pause in another place": at("storages.0.mount_point", f"/run/kata-containers/{CONTAINER}/rootfs"),
    "a container of that name": annotated("io.kubernetes.cri.container-type", "container"),
    "memory from elsewhere": mount("/dev/shm", source="/run/kata-containers/sandbox"),
    "memory of another kind": mount("/dev/shm", type_="overlay"),
    "memory with an option": mount("/dev/shm", options=["rbind", "exec"]),
    "the model": at("OCI.Linux.Devices", [{"Path": "/dev/redoubt-model", "Type": "b"}]),
    "both names": at(
        PAUSE_OPTION,
        [
            option(
                {"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri-o.ContainerType": "container"},
            )
        ],
    ),
    "an option that is no JSON": at(PAUSE_OPTION, ["image_guest_pull=sandbox"]),
    "another command": at("OCI.Process.Args", ["/bin/sh"]),
    "a device": at("devices", [DEVICE]),
    "a volume": at("storages.-", {"driver": "ephemeral", "source": "tmpfs", "mount_point": f"{EPHEMERAL}/tmp"}),
    "a mount": at("OCI.Mounts.-", EXTRA_MOUNT),
    "a writable root": at("OCI.Root.Readonly", False),
}


@pytest.mark.parametrize("edit", HOSTILE_PAUSE.values(), ids=HOSTILE_PAUSE)
def test_a_hostile_pause_is_denied(edit: Edit) -> None:
    pause = create_pause(made("confidential").pods()["head"])
    assert creates(pause)
    assert not creates(edited(pause, edit))


def test_a_runtime_that_calls_it_pause_may() -> None:
    pause = create_pause(made("confidential").pods()["head"])
    assert creates(edited(pause, at(PAUSE_OPTION, []), at("storages.0.source", "pause")))


DENIED = {
    "ExecProcessRequest": {"container_id": CONTAINER, "process": {"Args": ["/bin/sh"]}},
    "SetPolicyRequest": {"policy": "package agent_policy\ndefault ExecProcessRequest := true"},
    "ReadStreamRequest": {"container_id": CONTAINER},
    "WriteStreamRequest": {"container_id": CONTAINER},
    "CloseStdinRequest": {},
    "TtyWinResizeRequest": {},
    "GetDiagnosticDataRequest": {},
    "UpdateContainerRequest": {"container_id": CONTAINER},
    "UpdateEphemeralMountsRequest": {"storages": []},
    "SetGuestDateTimeRequest": {"Sec": 0},
    "ReseedRandomDevRequest": {"data": ""},
    "AddSwapRequest": {},
    "AddSwapPathRequest": {},
    "MemHotplugByProbeRequest": {},
    "SetIPTablesRequest": {},
    "GetIPTablesRequest": {},
    "PauseContainerRequest": {},
    "AllowRequestsFailingPolicy": {},
    "ARequestThatIsNewInKata": {},
}


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("name", DENIED)
def test_other_requests_are_denied(overlay: str, name: str) -> None:
    assert not allows(made(overlay), name, DENIED[name])


@pytest.mark.parametrize("name", ["StartContainerRequest", "SignalProcessRequest", "RemoveContainerRequest"])
def test_a_container_can_be_started_and_ended(name: str) -> None:
    assert allows(made("confidential"), name, {"container_id": CONTAINER})


def test_logs_are_for_those_who_ask_for_them() -> None:
    """With the switch the host reads output; that is another policy, so other measurements."""
    with_logs = Made(rendered("confidential-single"), logs=True)
    assert allows(with_logs, "ReadStreamRequest", {"container_id": CONTAINER})
    assert with_logs.pinned["mr_config_id"] != made("confidential-single").pinned["mr_config_id"]


def test_only_the_hosts_files_and_the_collateral_are_copied() -> None:
    for name in ("hosts", "hostname", "resolv.conf", "termination-log", "collateral/..2026_11_25/collateral.json"):
        assert allows(made("confidential"), "CopyFileRequest", copy_file(name))
    for path, target in (
        ("collateral/..data", "..2026_11_25"),
        ("collateral/collateral.json", "..data/collateral.json"),
    ):
        link = copy_file(path) | {"file_type": "Symlink", "symlink_target": target}
        assert allows(made("confidential"), "CopyFileRequest", link)
        for outside in ("/etc", "..", "../..", "../x", "..data/..", "../../etc/passwd", ""):
            assert not allows(made("confidential"), "CopyFileRequest", link | {"symlink_target": outside}), outside
    assert not allows(made("confidential-single"), "CopyFileRequest", copy_file("collateral/collateral.json"))
    for path in ("collateral", "collateral/..2026_11_25"):
        assert allows(made("confidential"), "CopyFileRequest", copy_file(path) | {"file_type": "Directory"})
    for wrong in (
        copy_file("collateral/../hosts2"),
        copy_file("collateral/.."),
        copy_file("collateral/a/b/c"),
        copy_file("collateral2"),
        copy_file("serviceaccount"),
        copy_file("tls.key"),
        copy_file("hosts") | {"file_type": "Symlink"},
        copy_file("hosts") | {"file_type": "Directory"},
        copy_file("hosts") | {"path": f"/run/kata-containers/{CONTAINER}/rootfs/hosts"},
        copy_file("hosts") | {"path": f"{SHARED}/../x-hosts"},
        copy_file("hosts") | {"path": f"{SHARED}/{CONTAINER}-{'d' * 16}-hosts/../../x-hosts"},
        copy_file("hosts") | {"path": f"{SHARED}/{CONTAINER}-{'d' * 16}-hosts\n"},
    ):
        assert not allows(made("confidential"), "CopyFileRequest", wrong), wrong


@pytest.mark.parametrize(
    "edit",
    [
        at("sandbox_pidns", True),
        at("guest_hook_path", "/usr/share/oci/hooks"),
        at("kernel_modules", [{"name": "evil"}]),
        at("storages.0.mount_point", "/usr"),
        at("storages.0.driver", "virtio-fs"),
        at("storages.-", {"driver": "virtio-fs", "source": "kataShared", "mount_point": SHARED}),
    ],
)
def test_a_hostile_sandbox_is_denied(edit: Edit) -> None:
    assert not allows(made("confidential"), "CreateSandboxRequest", edited(create_sandbox(), edit))


INTERFACE = {
    "interface": {
        **{"name": "eth0", "device": "eth0", "hwAddr": "66:74:9f:6a:96:01", "mtu": 1500, "raw_flags": 128},
        "IPAddresses": [{"address": "10.244.0.14", "mask": "24"}, {"address": "fe80::1", "mask": "64"}],
    }
}
ROUTES = {"routes": {"Routes": [{"dest": "", "device": "eth0", "gateway": "10.244.0.1", "source": ""}]}}
NEIGHBOURS = {
    "neighbors": {"ARPNeighbors": [{"device": "eth0", "toIPAddress": {"address": "169.254.1.1", "mask": ""}}]}
}


@pytest.mark.parametrize(
    ("name", "request_", "edits"),
    [
        (
            "UpdateInterfaceRequest",
            INTERFACE,
            [
                at("interface.name", "lo"),
                at("interface.device", "lo"),
                at("interface.hwAddr", "00:00:00:00:00:00"),
                at("interface.raw_flags", 8),
                at("interface.IPAddresses.0.address", "127.0.0.1"),
                at("interface.IPAddresses.1.address", "::1"),
            ],
        ),
        (
            "UpdateRoutesRequest",
            ROUTES,
            [
                at("routes.Routes.0.device", "lo"),
                at("routes.Routes.0.source", "127.0.0.1"),
                at("routes.Routes.0.source", "0:0:0:0:0:0:0:1"),
                at("routes.Routes.0.dest", "127.0.0.0/8"),
                at("routes.Routes.-", {"dest": "", "device": "lo", "gateway": "", "source": ""}),
            ],
        ),
        (
            "AddARPNeighborsRequest",
            NEIGHBOURS,
            [
                at("neighbors.ARPNeighbors.0.device", "lo"),
                at("neighbors.ARPNeighbors.0.toIPAddress.address", "127.0.0.1"),
            ],
        ),
    ],
)
def test_the_loopback_interface_is_the_guests(name: str, request_: Any, edits: list[Edit]) -> None:
    assert allows(made("confidential"), name, request_)
    for edit in edits:
        assert not allows(made("confidential"), name, edited(request_, edit))
