# What the agent in a confidential guest does for its host: it starts the pods of one rendered overlay, and nothing else.
#
# `python -m kuberay.confidential` appends `policy_data`: of each container its image, arguments, variables, user, volumes
# and devices, and whether the host may read its output. The agent (Kata Containers 4.3) asks for a rule with the name of
# each request. Written for images that are pulled in the guest, no shared file system, and volumes in memory or on raw
# block devices. What the host chooses in spite of this: the names and addresses of pods, /etc/hosts, /etc/resolv.conf,
# when a container starts and stops, and how much time and memory it gets.
package agent_policy

import future.keywords.every
import future.keywords.if
import future.keywords.in

default AddARPNeighborsRequest := false
default AddSwapPathRequest := false
default AddSwapRequest := false
default AllowRequestsFailingPolicy := false
default CloseStdinRequest := false
default CopyFileRequest := false
default CreateContainerRequest := false
default CreateSandboxRequest := false
default DestroySandboxRequest := true
default ExecProcessRequest := false
default GetDiagnosticDataRequest := false
default GetIPTablesRequest := false
default GetMetricsRequest := false
default GetOOMEventRequest := true
default GuestDetailsRequest := true
default ListInterfacesRequest := false
default ListRoutesRequest := false
default MemAgentCompactConfig := false
default MemAgentMemcgConfig := false
default MemHotplugByProbeRequest := false
default OnlineCPUMemRequest := true
default PauseContainerRequest := false
default ReadStreamRequest := false
default RemoveContainerRequest := true
default RemoveStaleVirtiofsShareMountsRequest := true
default ReseedRandomDevRequest := false
default ResizeVolumeRequest := false
default ResumeContainerRequest := false
default SetGuestDateTimeRequest := false
default SetIPTablesRequest := false
default SetPolicyRequest := false
default SignalProcessRequest := true
default StartContainerRequest := true
default StartTracingRequest := false
default StatsContainerRequest := true
default StopTracingRequest := false
default TtyWinResizeRequest := false
default UpdateContainerRequest := false
default UpdateEphemeralMountsRequest := false
default UpdateInterfaceRequest := false
default UpdateRoutesRequest := false
default VolumeStatsRequest := false
default WaitProcessRequest := true
default WriteStreamRequest := false

ReadStreamRequest if policy_data.logs == true

# A container of the overlay.
CreateContainerRequest if {
    nothing_unusual
    some container in policy_data.containers
    input.OCI.Annotations["io.kubernetes.cri.container-type"] == "container"
    input.OCI.Annotations["io.kubernetes.cri.container-name"] == container.name
    process_is(container)
    every variable in input.OCI.Process.Env {
        variable_is_allowed(container, variable)
    }
    every variable in variables(container) {
        variable in input.OCI.Process.Env
    }
    every mount in input.OCI.Mounts {
        mount_is_allowed(container, mount)
    }
    every storage in input.storages {
        storage_is_allowed(container, storage)
    }
    every device in list(input, "devices") {
        device.container_path in container.devices
        device.type_ in {"blk", "scsi"}
    }
    every device in list(input.OCI.Linux, "Devices") {
        device.Path in container.devices
        device.Type == "b"
    }
}

# The pod's own container, `pause`: the agent takes its files and its process from the guest's measured image.
CreateContainerRequest if {
    nothing_unusual
    input.OCI.Annotations["io.kubernetes.cri.container-type"] == "sandbox"
    input.OCI.Process.Args == ["/pause"]
    every mount in input.OCI.Mounts {
        mount_is_systems(mount)
    }
    every storage in input.storages {
        storage_is_pause(storage)
    }
    empty(input, "devices")
    empty(input.OCI.Linux, "Devices")
}

# Features of the runtime that no pod of ours uses, and what all containers have in common.
nothing_unusual if {
    every name in ["shared_mounts", "string_user"] {
        empty(input, name)
    }
    object.get(input, "sandbox_pidns", false) == false
    every name in ["Hooks", "Solaris", "Windows"] {
        empty(input.OCI, name)
    }
    every name in ["GIDMappings", "UIDMappings", "IntelRdt", "MountLabel", "RootfsPropagation", "Seccomp"] {
        empty(input.OCI.Linux, name)
    }
    # Streams that would pass ReadStreamRequest by.
    every name in ["stdin_port", "stdout_port", "stderr_port"] {
        object.get(input, name, 0) == 0
    }
    every name in ["BlockIO", "Devices", "Network"] {
        empty(map(input.OCI.Linux, "Resources"), name)
    }
    every namespace in input.OCI.Linux.Namespaces {
        namespace.Type in {"ipc", "uts", "mount", "pid", "cgroup", "network"}
        object.get(namespace, "Path", "") == ""
    }
    "mount" in [namespace.Type | some namespace in input.OCI.Linux.Namespaces]
    every name, value in map(input.OCI.Linux, "Sysctl") {
        sysctls[name] == value
    }
    every path in hidden_paths {
        path in array.concat(list(input.OCI.Linux, "MaskedPaths"), list(input.OCI.Linux, "ReadonlyPaths"))
    }
    every key, _ in input.OCI.Annotations {
        regex.match(`^(io\.kubernetes\.cri\.|io\.katacontainers\.|nerdctl/network-namespace$)`, key)
    }
    input.OCI.Root.Readonly == true
    regex.match(`^/run/kata-containers/[a-z0-9][a-z0-9.-]*/rootfs$`, input.OCI.Root.Path)
    destinations := [mount.destination | some mount in input.OCI.Mounts]
    count(destinations) == count({destination | some destination in destinations})
    count([storage | some storage in input.storages; storage.driver == "image_guest_pull"]) == 1
}

sysctls := {
    "net.ipv4.ip_unprivileged_port_start": "0",
    "net.ipv4.ping_group_range": "0 2147483647",
}

hidden_paths := ["/proc/kcore", "/proc/keys", "/proc/sysrq-trigger", "/sys/firmware"]

process_is(container) if {
    input.OCI.Process.Args == container.arguments
    input.OCI.Process.Cwd == container.working_folder
    input.OCI.Process.User.UID == container.user_id
    input.OCI.Process.User.GID == container.group_id
    every group in list(input.OCI.Process.User, "AdditionalGids") {
        group in container.groups
    }
    object.get(input.OCI.Process, "Terminal", false) == false
    input.OCI.Process.NoNewPrivileges == true
    empty(input.OCI.Process, "SelinuxLabel")
    empty(input.OCI.Process.User, "Username")
    every name in ["Ambient", "Bounding", "Effective", "Inheritable", "Permitted"] {
        empty(map(input.OCI.Process, "Capabilities"), name)
    }
    names := [split(variable, "=")[0] | some variable in input.OCI.Process.Env]
    count(names) == count({name | some name in names})
}

# Variables: those of the overlay, each of which has to be there, and what Kubernetes and KubeRay add.
variable_is_allowed(container, variable) if variable in variables(container)

variable_is_allowed(container, variable) if {
    some name in container.address_variables
    startswith(variable, concat("", [name, "="]))
    regex.match(`^[0-9a-f.:]{2,45}$`, substring(variable, count(name) + 1, -1))
}

variable_is_allowed(container, variable) if {
    some pattern in container.injected_variables
    regex.match(pattern, variable)
}

# The overlay's own. A value is a list of its lines, because the agent takes no line of more than 1024 characters.
variables(container) := [concat("=", [name, concat("\n", lines)]) | some name, lines in container.environment]

mount_is_allowed(_, mount) if mount_is_systems(mount)

mount_is_allowed(container, mount) if {
    some path, name in container.memory_volumes
    mount.destination == path
    mount.type_ == "bind"
    mount.source == concat("", ["/run/kata-containers/sandbox/ephemeral/", name])
    options_are_harmless(mount)
}

# What the host writes there it could as well make up: the service believes only what Intel has signed.
mount_is_allowed(container, mount) if {
    mount.destination == container.collateral
    mount.type_ == "bind"
    regex.match(concat("", [collateral_folder, "$"]), mount.source)
    "ro" in mount.options
    options_are_harmless(mount)
}

# The kernel's file systems, and the files that the host writes for the pod's name and network.
mount_is_systems(mount) if {
    mount.type_ in system_mounts[mount.destination]
    mount.source in {"proc", "tmpfs", "devpts", "mqueue", "sysfs", "cgroup"}
    options_are_harmless(mount)
}

mount_is_systems(mount) if {
    mount.destination == "/dev/shm"
    mount.type_ == "bind"
    mount.source == "/run/kata-containers/sandbox/shm"
    options_are_harmless(mount)
}

mount_is_systems(mount) if {
    some file in ["hosts", "hostname", "resolv.conf", "termination-log"]
    mount.destination == host_files[file]
    mount.type_ == "bind"
    regex.match(shared_file, mount.source)
    endswith(mount.source, concat("", ["-", file]))
    options_are_harmless(mount)
}

system_mounts := {
    "/proc": {"proc"},
    "/dev": {"tmpfs"},
    "/dev/pts": {"devpts"},
    "/dev/mqueue": {"mqueue"},
    "/sys": {"sysfs"},
    "/sys/fs/cgroup": {"cgroup", "cgroup2"},
}

host_files := {
    "hosts": "/etc/hosts",
    "hostname": "/etc/hostname",
    "resolv.conf": "/etc/resolv.conf",
    "termination-log": "/dev/termination-log",
}

shared_file := concat("", [
    `^/run/kata-containers/shared/containers/(passthrough/)?`,
    `[0-9a-f]{64}-[0-9a-f]{16}-(hosts|hostname|resolv\.conf|termination-log)$`,
])

options_are_harmless(mount) if {
    every option in mount.options {
        regex.match(harmless_option, option)
    }
}

harmless_option := concat("", [
    `^(ro|rw|nosuid|nodev|noexec|relatime|strictatime|rbind|rprivate|newinstance|nsdelegate|memory_recursiveprot`,
    `|mode=0?[0-7]{3}|ptmxmode=0666|gid=5|size=[0-9]+k?)$`,
])

# The image, by its digest wherever it comes from, and volumes in memory.
storage_is_allowed(container, storage) if {
    storage_is_image(storage)
    parts := split(storage.source, "@")
    count(parts) == 2
    parts[1] == container.image_digest
    every option in list(storage, "driver_options") {
        image_kind(option) != "sandbox"
    }
}

storage_is_allowed(container, storage) if {
    storage.driver == "ephemeral"
    storage.source == "tmpfs"
    storage.fstype == "tmpfs"
    empty(storage, "driver_options")
    some _, name in container.memory_volumes
    storage.mount_point == concat("", ["/run/kata-containers/sandbox/ephemeral/", name])
    every option in list(storage, "options") {
        option == sprintf("fsgid=%d", [container.volume_group_id])
    }
}

# An agent that knows no `pause` fails for want of the option, or refuses to pull an image of that name (cdh.toml).
storage_is_pause(storage) if {
    storage_is_image(storage)
    storage.source == "pause"
    empty(storage, "driver_options")
}

storage_is_pause(storage) if {
    storage_is_image(storage)
    count(storage.driver_options) == 1
    image_kind(storage.driver_options[0]) == "sandbox"
}

storage_is_image(storage) if {
    storage.driver == "image_guest_pull"
    storage.fstype == "overlay"
    storage.mount_point == input.OCI.Root.Path
    empty(storage, "options")
    empty(storage, "fs_group")
}

# Whether the agent unpacks `pause` for this option ("sandbox") or pulls the image ("container").
image_kind(option) := kind if {
    startswith(option, "image_guest_pull=")
    value := substring(option, 17, -1)
    json.is_valid(value)
    metadata := json.unmarshal(value).metadata
    not "io.kubernetes.cri-o.ContainerType" in object.keys(metadata)
    kind := object.get(metadata, "io.kubernetes.cri.container-type", "container")
}

CopyFileRequest if {
    input.file_type == "Regular"
    regex.match(shared_file, input.path)
}

# The collateral: a ConfigMap's files, its folders, and the links between them.
CopyFileRequest if {
    has_collateral
    input.file_type in {"Regular", "Directory"}
    regex.match(collateral_file, input.path)
}

CopyFileRequest if {
    has_collateral
    input.file_type == "Symlink"
    regex.match(collateral_file, input.path)
    regex.match(`^(\.\.)?[a-zA-Z0-9_][a-zA-Z0-9_.-]*(/[a-zA-Z0-9_][a-zA-Z0-9_.-]*)?$`, input.symlink_target)
}

has_collateral if {
    some container in policy_data.containers
    container.collateral != null
}

# `..data` and `..2026_11_25_08_00_00.123` are names of Kubernetes'; `..` alone is none here.
collateral_file := concat("", [collateral_folder, `(/(\.\.)?[a-zA-Z0-9_][a-zA-Z0-9_.-]*){0,2}$`])

collateral_folder := concat("", [
    `^/run/kata-containers/shared/containers/(passthrough/)?(watchable/)?`,
    `[0-9a-f]{64}-[0-9a-f]{16}-collateral`,
])

CreateSandboxRequest if {
    empty(input, "guest_hook_path")
    empty(input, "kernel_modules")
    object.get(input, "sandbox_pidns", false) == false
    every storage in list(input, "storages") {
        storage.driver == "ephemeral"
        storage.source == "shm"
        storage.fstype == "tmpfs"
        storage.mount_point == "/run/kata-containers/sandbox/shm"
        empty(storage, "driver_options")
    }
}

# The pod's network, but never the loopback interface, over which the service's own processes talk.
UpdateInterfaceRequest if {
    input.interface.name != "lo"
    input.interface.device != "lo"
    input.interface.hwAddr != "00:00:00:00:00:00"
    bits.and(input.interface.raw_flags, bits.negate(128)) == 0
    every address in list(input.interface, "IPAddresses") {
        is_outside(address.address)
    }
}

UpdateRoutesRequest if {
    every route in list(input.routes, "Routes") {
        route.device != "lo"
        is_outside(route.source)
        is_outside(route.dest)
    }
}

AddARPNeighborsRequest if {
    every neighbour in list(input.neighbors, "ARPNeighbors") {
        neighbour.device != "lo"
        is_outside(neighbour.toIPAddress.address)
    }
}

is_outside(address) if not regex.match(`^(127\.|::1$|::1/|(0{0,4}:){7}0{0,3}1(/|$)|::ffff:127\.)`, lower(address))

# What a request does not say is null, an empty list, map or text, or is missing.
empty(object_, name) if object.get(object_, name, null) in [null, [], {}, ""]

list(object_, name) := [] if empty(object_, name)

list(object_, name) := object_[name] if not empty(object_, name)

map(object_, name) := {} if empty(object_, name)

map(object_, name) := object_[name] if not empty(object_, name)
