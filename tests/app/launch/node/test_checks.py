import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.launch.node.checks import NodeCores, mistake
from app.launch.node.options import NodeOptions, node_options
from app.launch.node.roles import Cores, Role
from app.sealing.keys import make_key_file
from app.sealing.seal import seal
from app.settings.knobs import SettingsError
from app.workers.numa import Slot, cpu_limit

WHOLE_NODE = NodeCores((Slot(0, (0, 1, 2, 3)),), 8, None)


def options(role: Role = Role.WORKER, environment: dict[str, str] | None = None, **changes: object) -> NodeOptions:
    made = node_options(
        role,
        environment or {"FQ_RAY_IP": "127.0.0.1", "POD_IP": "127.0.0.1"},
        address=None,
        cores=Cores.EXCLUSIVE,
        models=(),
        health_port=8079,
        http_port=8000,
        drain_timeout_s=60,
        tls_authority=None,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()
    return folder


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_worker_with_its_model_and_whole_cores_may_start(model: Path) -> None:
    assert mistake(options(models=(model,)), WHOLE_NODE) is None


def test_a_missing_and_an_unconverted_model_are_named(model: Path, tmp_path: Path) -> None:
    missing = tmp_path / "other"
    assert str(missing) in str(mistake(options(models=(model, missing)), WHOLE_NODE))
    (model / "model.safetensors").unlink()
    found = str(mistake(options(models=(model,)), WHOLE_NODE))
    assert f"{model} is not a converted model: it has no model.safetensors" in found
    assert "redoubt convert" in found


def test_a_sealed_model_is_one_by_its_beginning(model: Path, tmp_path: Path) -> None:
    image, key = tmp_path / "image", make_key_file(tmp_path / "key")
    seal(model, image, key, progress=False)
    assert mistake(options(models=(image, model)), WHOLE_NODE) is None
    image.write_bytes(bytes(4096))
    found = str(mistake(options(models=(image,)), WHOLE_NODE))
    assert f"{image} is neither a folder nor a sealed model" in found
    assert "redoubt seal" in found


@pytest.mark.parametrize("limit", [3.5, 7.0])
def test_a_part_of_shared_cores_is_not_whole_cores(limit: float) -> None:
    cores = replace(WHOLE_NODE, limit_cpus=limit)
    assert f"{limit:g} CPUs' time on 8 CPUs" in str(mistake(options(), cores))
    assert mistake(options(cores=Cores.SHARED), cores) is None
    assert mistake(options(Role.HEAD), cores) is None


def test_a_limit_that_pays_for_all_its_cores_is_no_mistake() -> None:
    assert mistake(options(), replace(WHOLE_NODE, limit_cpus=8.0)) is None


def test_cores_of_two_nodes_are_not_those_of_one() -> None:
    cores = NodeCores((Slot(0, (0, 1)), Slot(1, (2, 3))), 4, None)
    assert "NUMA nodes (0, 1)" in str(mistake(options(), cores))
    assert mistake(options(cores=Cores.SHARED), cores) is None


def test_a_second_head_is_noticed(taken_port: int) -> None:
    second = options(Role.HEAD, {"POD_IP": "127.0.0.1", "RAY_PORT": str(taken_port)})
    assert "another head" in str(mistake(second, WHOLE_NODE))


@pytest.mark.parametrize(
    ("limit", "count"), [(None, 4), (8.0, 4), (2.5, 2), (0.5, 1)], ids=["none", "more", "fewer", "less than one"]
)
def test_cores_are_counted_as_far_as_the_limit_pays(limit: float | None, count: int) -> None:
    assert replace(WHOLE_NODE, limit_cpus=limit).count == count


@pytest.mark.parametrize(
    ("text", "cpus"), [("max 100000\n", None), ("350000 100000\n", 3.5), ("nonsense", None)], ids=str
)
def test_the_cgroups_limit(text: str, cpus: float | None, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_limit(tmp_path / "cpu.max") == cpus


class TestOptions:
    def test_a_head_is_at_its_pods_address(self) -> None:
        made = options(Role.HEAD, {"POD_IP": "10.1.2.3", "RAY_ADDRESS": "127.0.0.1:6379"})
        assert (made.head_address, made.address) == ("10.1.2.3:6379", "10.1.2.3")

    @pytest.mark.parametrize("known_as", ["127.0.1.1", None], ids=["Debian's /etc/hosts", "unknown name"])
    def test_a_head_is_where_other_machines_reach_it(
        self, known_as: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def resolve(name: str) -> str:
            if known_as is None:
                raise socket.gaierror(f"{name} is not known")
            return known_as

        monkeypatch.setattr(socket, "gethostbyname", resolve)
        monkeypatch.setattr("app.launch.node.options._address_towards", lambda where: "10.1.2.5")
        assert options(Role.HEAD, {"PATH": ""}).head_address == "10.1.2.5:6379"

    def test_a_head_that_no_other_machine_reaches_is_told_what_to_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
        monkeypatch.setattr("app.launch.node.options._ELSEWHERE", "nowhere.invalid:9")
        with pytest.raises(SettingsError, match="set POD_IP"):
            options(Role.HEAD, {"PATH": ""})

    @pytest.mark.parametrize("address", ["redoubt-head", "10.1.2.3\nbind *:80"])
    def test_what_is_no_address_of_its_own_is_named(self, address: str) -> None:
        with pytest.raises(SettingsError, match=r"POD_IP: .* is no IP address"):
            options(Role.WORKER, {"POD_IP": address, "FQ_RAY_IP": "127.0.0.1"})

    def test_nothing_hides_in_an_address_zone(self) -> None:
        assert options(Role.WORKER, {"POD_IP": "fe80::1%\nbind *:80", "FQ_RAY_IP": "127.0.0.1"}).address == "fe80::1"

    def test_a_worker_finds_the_head_as_kuberay_says(self) -> None:
        given = {"POD_IP": "10.1.2.4", "FQ_RAY_IP": "redoubt-head.default.svc", "RAY_PORT": "6380"}
        assert options(Role.WORKER, given).head_address == "redoubt-head.default.svc:6380"

    def test_a_worker_without_a_head_is_told_what_to_set(self) -> None:
        with pytest.raises(SettingsError, match="--address HOST:6379, or FQ_RAY_IP"):
            options(Role.WORKER, {"POD_IP": "10.1.2.4"})

    def test_its_own_address_is_the_one_towards_the_head(self) -> None:
        assert options(Role.WORKER, {"FQ_RAY_IP": "127.0.0.1"}).address == "127.0.0.1"
        with pytest.raises(SettingsError, match=r"no way to the head at nowhere\.invalid:6379"):
            options(Role.WORKER, {"FQ_RAY_IP": "nowhere.invalid"})


def test_the_checks_read_this_machine() -> None:
    from app.launch.node.checks import node_cores

    assert node_cores().logical_cpus == len(os.sched_getaffinity(0))
