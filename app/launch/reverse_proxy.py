"""The service's HTTP front: HAProxy as Ray Serve runs it, restricted to what the service needs.

Serve's own proxy is a Python process through which every token passes; HAProxy needs much less CPU and talks to the
ingress directly. But as Serve 2.60 configures it, it serves statistics pages on every address of the machine and sends
a syslog line for each request. So Serve starts this program instead of HAProxy: it rewrites the configuration that
Serve wrote and then becomes HAProxy by `exec`.

On one machine clients never reach this HAProxy, which ends with Serve's manager: it listens on a Unix socket, for the
start of the service, and its configuration is handed to the front (`app.launch.front`). In a cluster each node has an
HAProxy, which sends requests to its own node's ingress, and to another node's only while its own has none.

Serve runs it at every start and reload of HAProxy. It imports the standard library and nothing of the rest of `app`.
"""

import ctypes
import json
import os
import re
import resource
import shlex
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

FRONT_BIND = "@front"
"""Placeholder for the listening address in a front's configuration."""
INNER_SOCKET = "inner"
"""The Unix socket, in HAProxy's folder, on which a local service's own HAProxy of Serve listens."""

_BIND = "REDOUBT_PROXY_BIND"
_FRONT = "REDOUBT_PROXY_FRONT"
_RAY = "REDOUBT_PROXY_RAY"
_BINARY = "REDOUBT_PROXY_BINARY"
_ERRORS = "REDOUBT_PROXY_ERROR_FOLDER"
_OWN_ADDRESS = "REDOUBT_PROXY_NODE_ADDRESS"
_ATTESTED = "REDOUBT_ATTESTED_FRONT"
_STAY_ON_NODE = "REDOUBT_PROXY_STAY_ON_NODE"
_UNWANTED = ("frontend prometheus", "listen stats")
_SECTION = re.compile(r"^(?:global|defaults|frontend|backend|listen)\b.*$", re.MULTILINE)
_SERVER = re.compile(r"^ +server \S+ \[?(?P<host>[^\s\]]+)\]?:\d+ ")
_MOST_CONNECTIONS = 16384
_MOST_OF_ONE_ADDRESS = 0.75
"""The largest share of all connections that one address may have."""
# Each connection of a client needs a second one to the ingress, and HAProxy 2.8 counts half a descriptor more for the
# pipes of `splice-response`. `_SPARE_FILES` descriptors are for everything else.
_FILES_OF_A_CONNECTION = 2.5
_SPARE_FILES = 256
# HAProxy's own answers, in the API's format: first line, further headers, message, type and code. 503: there is no
# ingress, or it was lost before it answered. HAProxy 2.8 has a fixed page for what it can't parse as HTTP, such as a
# head longer than its buffer.
_ERROR_FILES = {
    400: (
        "400 Bad Request",
        "",
        "The request is not whole: its client closed its side of the connection before the answer.",
        ("invalid_request_error", "incomplete_request"),
    ),
    408: (
        "408 Request Timeout",
        "",
        "The request did not arrive in time.",
        ("invalid_request_error", "request_timeout"),
    ),
    503: (
        "503 Service Unavailable",
        "Retry-After: 1\r\n",
        "The service is not there for the moment. Try again.",
        ("server_error", None),
    ),
}
_REPEATABLE = (
    "/v1/chat/completions /v1/completions /v1/embeddings /v1/messages /v1/messages/count_tokens /tokenize /detokenize"
)
_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_LONGEST_SILENCE_S = 3600
_LONGEST_HEAD_S = 60  # for a request's head, with its body or the first 16 KiB of it
# After a reload the old process serves its last streams, at most this long; an answer may take hours.
_LONGEST_ANSWER_S = 86400


class UnknownConfigurationError(ValueError):
    """Serve's configuration is not the one that this program was written for."""


def proxy_environment(
    folder: Path, environment: Mapping[str, str], *, binary: Path, front: Path, ray: str, ports: Sequence[int]
) -> dict[str, str]:
    """Variables with which Serve uses HAProxy behind a front; Serve's own host must be loopback.

    Writes the program that Serve starts instead of HAProxy. Raises OSError if the folder allows no programs.

    Args:
        folder: private and present; its path is short, because Unix sockets are in it.
        environment: the present variables; those on HAProxy's threads, connections and health checks are kept.
        binary: HAProxy.
        front: the Unix socket where the front takes configurations (`Front.address`).
        ray: the name of this Ray there.
        ports: successive ones for its ingresses, and the last one for Serve's own proxy, which takes over while there
            is no ingress. This user holds them (`app.launch.held_ports`).
    """
    *ingresses, fallback = ports
    return _environment(folder, environment, binary) | {
        _BIND: f"unix@{folder / INNER_SOCKET}",
        _FRONT: str(front),
        _RAY: ray,
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ingresses[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ingresses[-1]),
        # Serve's own proxy shares a held port; `app.ray_internals` makes ingresses do so.
        "SERVE_SOCKET_REUSE_PORT_ENABLED": "1",
    }


def cluster_proxy_environment(
    folder: Path, environment: Mapping[str, str], *, binary: Path, node_address: str, stay_on_node: bool
) -> dict[str, str]:
    """Variables for a node of a cluster, where HAProxy listens as Serve's configuration says.

    Args:
        folder: as above.
        environment: as above.
        binary: HAProxy.
        node_address: the node's own, under which its ingress is known.
        stay_on_node: never send a request to another node, because what HAProxy sends is not encrypted.
    """
    return _environment(folder, environment, binary) | {
        _OWN_ADDRESS: node_address,
        _STAY_ON_NODE: "1" if stay_on_node else "0",
    }


def _environment(folder: Path, environment: Mapping[str, str], binary: Path) -> dict[str, str]:
    write_error_files(folder)
    launcher = folder / "haproxy"
    command = shlex.join([sys.executable, "-I", str(Path(__file__).resolve())])
    launcher.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    launcher.chmod(0o700)
    if not os.access(launcher, os.X_OK):
        raise PermissionError(f"{folder} allows no programs")
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files == resource.RLIM_INFINITY:
        most_files = sys.maxsize
    most_connections = int((most_files - _SPARE_FILES) / _FILES_OF_A_CONNECTION)
    defaults = {
        # One thread is enough: it moves more tokens than a machine's cores compute.
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HAPROXY_MAXCONN": str(max(16, min(_MOST_CONNECTIONS, most_connections))),
        # Serve starts HAProxy anew after three failed checks.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
        # Serve kills a proxy that is not up in time, three times, and then the start fails; by default after 5 s, which
        # is not enough while other processes of the service start on the same few cores.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
        # Two warnings of Serve's that do not apply: there are no other nodes, and a model may have no autoscaling.
        "RAY_DEDUP_LOGS_SKIP_REGEX": "connections from HAProxy on other nodes|Cannot deregister autoscaling state",
    }
    return {name: environment.get(name, value) for name, value in defaults.items()} | {
        _BINARY: str(binary),
        _ERRORS: str(folder),
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "s"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # ours are at /metrics
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(_LONGEST_ANSWER_S),
        # A new ingress may reuse its predecessor's port at once, so that an old HAProxy with running streams finds it.
        "RAY_SERVE_PORT_QUARANTINE_S": "0",
    }


def write_error_files(folder: Path) -> None:
    """Writes the complete HTTP responses that HAProxy itself gives; `confined` refers to them. Raises OSError."""
    for status, (line, headers, message, (kind, code)) in _ERROR_FILES.items():
        body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
        head = f"HTTP/1.1 {line}\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        (folder / f"{status}.http").write_bytes((head + body).encode())


def confined(
    configuration: str,
    bind: str | None,
    error_folder: str,
    own_address: str | None = None,
    *,
    stay_on_node: bool = False,
    is_behind_front: bool = False,
) -> str:
    """Restricts Serve's configuration of HAProxy to one listening address, without logs.

    Args:
        configuration: Serve's.
        bind: that address, with its port; None: Serve's.
        error_folder: where `write_error_files` has written.
        own_address: of this node of a cluster: its ingress gets the requests, the others stand by.
        stay_on_node: the others do not even stand by.
        is_behind_front: clients reach it through an attested front on this machine, which knows their addresses.

    Raises UnknownConfigurationError.
    """
    starts = [found.start() for found in _SECTION.finditer(configuration)]
    sections = [configuration[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
    kept = [section for section in sections if not section.startswith(_UNWANTED)]
    if len(sections) - len(kept) != len(_UNWANTED):
        raise UnknownConfigurationError(f"not one section each of {' and '.join(_UNWANTED)}")
    result = re.sub(r"(?m)^ +log .*\n", "", "".join(kept))
    # With splice-request HAProxy 2.8 may miss that a client disconnects before its response begins, if the request
    # arrived in several pieces.
    result = re.sub(r"(?m)^ +option splice-request\n", "", result)
    # If a reused connection to the ingress breaks, HAProxy closes the client's connection and does not send the error
    # file. So each request gets a new connection.
    result = re.sub(r"(?m)^( +http-reuse ).*$", r"\1never\n    option http-server-close", result)
    if bind is None:
        result = re.sub(r"(?m)^( +bind .*)$", r"\1 proto h1", result)
    else:
        result = _with(result, "bind", f"{bind} proto h1")
    if own_address is not None:
        result = _own_ingress_first(result, own_address, stay_on_node=stay_on_node)
    # Requests whose ingress was lost before it answered go to the next one. Requests that store something are not sent
    # twice.
    result = _with(result, "retry-on", "conn-failure empty-response")
    # The ingress shares time among clients without a key by address.
    client = "http-request set-header X-Redoubt-Client %[src]"
    if is_behind_front:
        client += " unless { src 127.0.0.0/8 ::1 } { req.hdr(X-Redoubt-Client) -m found }"
    once = f"http-request disable-l7-retry if !METH_GET !{{ path {_REPEATABLE} }}"
    # The id is in logs, so a client may choose it only as a UUID. Without one the ingress makes one.
    is_uuid = f"{{ req.fhdr_cnt(x-request-id) eq 1 }} {{ req.fhdr(x-request-id) -m reg {_UUID} }}"
    only_uuids = f"http-request del-header x-request-id unless {is_uuid}"
    rules = (*_connection_limit(result), client, once, only_uuids)
    result = re.sub(
        r"(?m)^( +)bind .*$", lambda line: "\n".join((line[0], *(line[1] + rule for rule in rules))), result
    )
    # A client may be silent for long during a response, but not before it has sent its request. A request reaches the
    # ingress only with its body, or a full buffer of it, so that half-sent requests hold no place there.
    result = _with(
        result,
        "timeout client",
        f"{_LONGEST_SILENCE_S}s\n    timeout http-request {_LONGEST_HEAD_S}s\n    option http-buffer-request",
    )
    result = _with(result, r"errorfile \d+", f"{error_folder}/503.http")  # 502 and 504 are the same to clients
    own = "".join(f"\n    errorfile {status} {error_folder}/{status}.http" for status in (400, 408))
    result = re.sub(r"(?m)^defaults$", lambda line: line[0] + own, result)
    if not re.search(r"(?m)^\s*use_backend ", result):  # Serve does not know an ingress yet
        result = _with(result, "http-request return status(?= 404 )", "503 default-errorfiles")
    if len(re.findall(r"(?m)^\s*bind\b", result)) != 1:
        raise UnknownConfigurationError("not one address to listen on")
    return result


def _connection_limit(configuration: str) -> tuple[str, ...]:
    """Directives that keep one address from taking all connections. Raises UnknownConfigurationError."""
    if (all_of_them := re.search(r"(?m)^\s*maxconn (\d+)$", configuration)) is None:
        raise UnknownConfigurationError("there is no maxconn")
    most = int(int(all_of_them[1]) * _MOST_OF_ONE_ADDRESS)
    return (
        "stick-table type ipv6 size 100k expire 60s store conn_cur",
        "tcp-request connection track-sc0 src",
        f"tcp-request connection reject if {{ sc0_conn_cur gt {most} }}",
    )


def _own_ingress_first(configuration: str, own_address: str, *, stay_on_node: bool) -> str:
    """Makes other nodes' servers backups if this node has a server, or removes them."""
    own = {own_address, "127.0.0.1", "::1"}
    lines = configuration.splitlines(keepends=True)
    has_own = any((found := _SERVER.match(line)) and found["host"] in own for line in lines)
    kept = []
    for line in lines:
        found = _SERVER.match(line)
        if found is None or found["host"] in own:
            kept.append(line)
        elif not stay_on_node:
            is_backup = line.split()[-1] == "backup" or not has_own
            kept.append(line if is_backup else line.rstrip("\n") + " backup\n")
    return "".join(kept)


def _with(configuration: str, directive: str, value: str) -> str:
    """Sets this value for every occurrence of the directive, which is a regular expression."""
    result, found = re.subn(rf"(?m)^(\s*{directive} ).*$", lambda line: line[1] + value, configuration)
    if not found:
        raise UnknownConfigurationError(f"there is no {directive}")
    return result


def _of_the_front(configuration: str) -> str:
    """The configuration for the front, which Serve does not administer.

    Empty while there is no ingress: connections wait.
    """
    if not re.search(r"(?m)^\s*use_backend ", configuration):
        return ""
    administration = r"stats (?:socket|timeout)|server-state-\w+|load-server-state-from-file"
    return re.sub(rf"(?m)^\s*(?:{administration}) .*\n", "", configuration)


def _hand_over(configuration: str, front: str, ray: str) -> None:
    """Sends the front a configuration. Raises OSError if the front is not there."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10.0)
        connection.connect(front)
        connection.sendall(json.dumps({"ray": ray, "configuration": configuration}).encode())
        connection.shutdown(socket.SHUT_WR)
        connection.recv(16)  # acknowledged


def end_with_parent() -> None:
    """Has the kernel kill this process, and what it becomes by `exec`, with its parent. Exits if that is too late.

    HAProxy's parent is Serve's HAProxyManager. The kernel looks at the thread that has started this process, and not at
    the whole parent: it is the actor's event loop, which runs as long as the actor does (Ray 2.60). Without this, a
    node's HAProxy would hold the port for ever and answer 503.
    """
    parent = os.getppid()
    pr_set_pdeathsig = 1
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(pr_set_pdeathsig, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if parent == 1 or os.getppid() != parent:
        sys.exit("the process that has started this one is gone")


def main() -> None:
    """Rewrites the configuration that `-f` names, and becomes HAProxy with the same arguments."""
    end_with_parent()
    arguments = sys.argv[1:]
    path = Path(arguments[arguments.index("-f") + 1])
    written = path.read_text(encoding="utf-8")
    bind, errors = os.environ.get(_BIND), os.environ[_ERRORS]
    is_behind_front = os.environ.get(_ATTESTED) == "1"
    result = confined(
        written,
        bind,
        errors,
        os.environ.get(_OWN_ADDRESS),
        stay_on_node=os.environ.get(_STAY_ON_NODE) == "1",
        is_behind_front=is_behind_front,
    )
    if (front := os.environ.get(_FRONT)) is not None and (
        of_front := _of_the_front(confined(written, FRONT_BIND, errors, is_behind_front=is_behind_front))
    ):
        _hand_over(of_front, front, os.environ[_RAY])
    path.write_text(result, encoding="utf-8")
    binary = os.environ[_BINARY]
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main()
