from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from app.attestation.evidence import SoftEvidence
from app.attestation.soft_files import main as make_soft_keys
from app.attestation.soft_files import read_pki
from app.launch.measured_config import SERVE_CONFIG
from app.launch.node.confidential import EVIDENCE, PEER_RTMR0, SOFT_PKI, memory_folder, resolved, without_ray
from app.launch.node.options import NodeOptions, node_options
from app.launch.node.ray_process import start_arguments, start_environment
from app.launch.node.roles import Cores, Role
from app.settings.environment import ATTESTED_FRONT
from app.settings.knobs import SettingsError
from bench.common import ROOT
from tests.app.launch.node.test_checks import WHOLE_NODE
from tests.app.launch.test_measured_config import CONFIGURATION
from tests.cloud.manifests.operator_pods import pods


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    own = {
        EVIDENCE: "soft",
        SERVE_CONFIG: yaml.safe_dump(CONFIGURATION),
        SOFT_PKI: "/soft",
        "RAY_AUTH_TOKEN": "the operator's",
        "POD_IP": "127.0.0.1",
        "FQ_RAY_IP": "127.0.0.1",
    }
    return own | dict(changes)


def options(
    changes: Mapping[str, str] | None = None, role: Role = Role.HEAD, tls_authority: Path | None = None
) -> NodeOptions:
    """changes: of the variables; empty ones are left out."""
    return node_options(
        role,
        {name: value for name, value in environment(changes or {}).items() if value},
        address=None,
        cores=Cores.SHARED,
        models=(),
        health_port=8079,
        http_port=8000,
        drain_timeout_s=60,
        tls_authority=tls_authority,
    )


def test_a_node_is_confidential_only_if_it_is_told() -> None:
    made = options()
    assert made.confidential is not None
    assert made.confidential.config.values == CONFIGURATION
    assert options({EVIDENCE: ""}).confidential is None


@pytest.mark.parametrize(
    "name",
    [
        "RAY_REDIS_ADDRESS",
        "RAY_external_storage_namespace",
        "RAY_RUNTIME_ENV_HOOK",
        "RAY_START_HOOK",
        "RAY_AUTH_TOKEN_PATH",
        "RAY_USE_TLS",
        "RAY_TLS_CA_CERT",
        "RAY_SERVE_ENABLE_HA_PROXY",
        "RAY_SERVE_HAPROXY_BINARY_PATH",
        "RAY_DASHBOARD_ADDRESS",
        "RAY_JOB_SUBMISSION_HOOK",
        "RAY_JOB_CONFIG_JSON_ENV_VAR",
        "RAY_raylet_start_wait_time_s",
        "REDOUBT_PROXY_BIND",
        "RAY_",
    ],
)
@pytest.mark.parametrize("role", Role)
def test_a_hostile_variable_is_refused_by_name(name: str, role: Role) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: a confidential node sets these itself"):
        options({name: "1"}, role)
    assert options({EVIDENCE: "", name: "1"}, role).confidential is None


def kuberays() -> dict[str, dict[str, str]]:
    """What KubeRay and kuberay/base set, by role; where the value is another object's, its name."""
    service = yaml.safe_load((ROOT / "kuberay/base/rayservice.yaml").read_text())
    made = pods(service)
    return {
        role: {one["name"]: str(one.get("value", one["name"])) for one in pod["spec"]["containers"][0]["env"]}
        for role, pod in (("head", made["head"]), ("worker", made["numa-node"]))
    }


@pytest.mark.parametrize("role", Role)
def test_what_kuberay_sets_is_taken_and_kept_from_ray(role: Role, tmp_path: Path) -> None:
    given = kuberays()[role.value] | {
        "POD_IP": "127.0.0.1",
        "KUBERAY_GEN_RAY_START_CMD": "curl elsewhere",
    }
    made = options(given, role)
    assert made.confidential is not None
    left = without_ray(environment(given))
    assert not [name for name in left if name.startswith(("RAY_", "KUBERAY_"))]
    assert "the operator's" not in left.values()
    assert left["REDOUBT_HEALTH_PORT"] == "8079"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({EVIDENCE: "sgx"}, f"{EVIDENCE}: there is no 'sgx': coco or soft"),
        ({SERVE_CONFIG: ""}, f"{SERVE_CONFIG} is missing"),
        ({SERVE_CONFIG: "applications: []"}, f"{SERVE_CONFIG}: applications"),
        ({EVIDENCE: "coco"}, "attestation.evidence: is soft and the node's is coco"),
        ({SOFT_PKI: ""}, f"{SOFT_PKI} is missing"),
        ({"RAY_AUTH_TOKEN": ""}, "RAY_AUTH_TOKEN is missing"),
        ({PEER_RTMR0: "ab, " + "00" * 48}, f"{PEER_RTMR0}: takes values of 96 hexadecimal digits"),
    ],
    ids=["evidence", "configuration", "wrong configuration", "other evidence", "keys", "token", "register"],
)
def test_what_is_missing_or_wrong_is_named(changes: dict[str, str], fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        options(changes)


def test_the_authority_is_the_heads_own(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--tls-ca"):
        options(tls_authority=tmp_path)


def test_registers_of_other_sizes() -> None:
    made = options({PEER_RTMR0: f"{'ab' * 48}, {'CD' * 48}"})
    assert made.confidential is not None
    assert made.confidential.more_rtmr0 == {b"\xab" * 48, b"\xcd" * 48}


def test_a_worker_needs_no_operators_token() -> None:
    made = options({"RAY_AUTH_TOKEN": ""}, Role.WORKER)
    assert made.confidential is not None
    assert made.confidential.operator_token is None


def test_the_dashboard_is_behind_the_gate(tmp_path: Path) -> None:
    assert {"--dashboard-host=127.0.0.1", "--dashboard-port=8266"} <= set(
        start_arguments(options(), WHOLE_NODE, tmp_path)
    )


def test_the_front_is_there_and_requests_stay_in_their_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = start_environment(options(role=Role.WORKER), tmp_path, {"RAY_USE_TLS": "1"})
    assert (made[ATTESTED_FRONT], made["REDOUBT_PROXY_STAY_ON_NODE"]) == ("1", "1")


def test_keys_lie_in_memory() -> None:
    assert memory_folder() == Path("/dev/shm")


def test_the_heads_name_becomes_its_address() -> None:
    assert resolved("localhost:6379") == "127.0.0.1:6379"
    with pytest.raises(SettingsError, match=r"the head's name nowhere\.invalid has no address yet"):
        resolved("nowhere.invalid:6379")


class TestSoftKeys:
    def test_pods_that_share_them_are_of_one_platform(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = tmp_path / "keys"
        make_soft_keys([str(folder)])
        assert capsys.readouterr().out.startswith("INSECURE")
        made = options({SOFT_PKI: str(folder)}).confidential
        assert made is not None
        source = made.source()
        assert isinstance(source, SoftEvidence)
        assert source.tee.pki.root_der == read_pki(folder).root_der
        assert all(path.stat().st_mode & 0o077 == 0 for path in folder.glob("*.key"))

    @pytest.mark.parametrize("name", ["root.crt", "pck.key", "ppid"])
    def test_a_folder_without_them_is_named(self, name: str, tmp_path: Path) -> None:
        folder = tmp_path / "keys"
        make_soft_keys([str(folder)])
        (folder / name).write_text("nonsense")
        made = options({SOFT_PKI: str(folder)}).confidential
        assert made is not None
        with pytest.raises(SettingsError, match=f"{SOFT_PKI}: {folder}: no keys of soft evidence"):
            made.source()
