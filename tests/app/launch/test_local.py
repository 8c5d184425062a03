import socket
import stat
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from app.launch.config_file import DEFAULT_CONFIG, ServiceConfig, checked_config
from app.launch.local import serve_local
from app.launch.overrides import Overrides
from app.launch.ray_environment import ray_environment
from app.launch.watched_config import ConfigChange, WatchedConfig
from app.sealing.keys import make_key_file
from app.sealing.seal import seal
from app.settings.knobs import SettingsError

LOCAL = Path(__file__).parents[3] / "ray_configs/local.yaml"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "some-model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()
    return folder


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_without_a_file_a_model_is_served_as_in_a_clone(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = checked_config(LOCAL, Overrides(model_folders=[model]))
    assert checked_config(DEFAULT_CONFIG, Overrides(model_folders=[model])).model_dump() == expected.model_dump()
    with pytest.raises(
        SettingsError, match="name a model to serve, as in `redoubt serve qwen3-4b`, or a file by --config"
    ):
        checked_config(DEFAULT_CONFIG)


def test_a_chat_template_is_for_one_model(model: Path) -> None:
    config = checked_config(LOCAL, Overrides(model_folders=[model], chat_template=Path("t.jinja")))
    assert config.application.args.model_card().chat_template == str(Path("t.jinja").absolute())
    with pytest.raises(SettingsError, match="--chat-template is for one model"):
        checked_config(LOCAL, Overrides(model_folders=[model, model.parent], chat_template=Path("t.jinja")))


def test_overrides_reach_the_configuration(model: Path, port: int) -> None:
    config = checked_config(LOCAL, Overrides(host="127.0.0.2", port=port, model_folders=[model]))
    assert (config.http_options.host, config.http_options.port) == ("127.0.0.2", port)
    assert config.application.args.model.folder == str(model)
    assert config.application.args.model.name == "some-model"


def test_the_folder_of_the_access_log_is_there_for_every_process(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    config = checked_config(LOCAL.absolute(), Overrides(model_folders=[model], log_folder=Path("logs")))
    assert config.application.args.ingress.access_log_folder == str(tmp_path / "logs")
    of_the_file = config.application.args.ingress.model_copy(update={"access_log_folder": "logs"})
    assert of_the_file.at_absolute_paths().access_log_folder == str(tmp_path / "logs")


def test_a_link_keeps_its_own_name(model: Path, port: int, tmp_path: Path) -> None:
    link = tmp_path / "the-model"
    link.symlink_to(model)
    config = checked_config(LOCAL, Overrides(port=port, model_folders=[link]))
    assert config.application.args.model.name == "the-model"


def test_a_folder_that_is_no_model(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(SettingsError, match=r"some-model is not a converted model: it has no model\.safetensors"):
        checked_config(LOCAL, Overrides(model_folders=[model]))


def test_a_sealed_model_is_opened_before_anything_starts(model: Path, tmp_path: Path) -> None:
    image, key, path = tmp_path / "image", tmp_path / "key", tmp_path / "service.yaml"
    seal(model, image, make_key_file(key), progress=False)
    values = yaml.safe_load(LOCAL.read_text())

    def served(**changes: str) -> ServiceConfig:
        place = {"sealed": str(image), "key": f"file://{key}", "served_name": "some-model"}
        values["applications"][0]["args"]["model"] = place | changes
        path.write_text(yaml.safe_dump(values))
        return checked_config(path)

    assert served().application.args.model.name == "some-model"
    other_key = tmp_path / "other"
    make_key_file(other_key)
    for changes, reason in (
        ({"served_name": "other"}, "was sealed under the name 'some-model'"),
        ({"key": f"file://{other_key}"}, "this key does not open it"),
        ({"key": f"file://{tmp_path}/none"}, "No such file"),
        ({"sha256": "0" * 64}, "its digest is [0-9a-f]{64}, not"),
        ({"sealed": str(key)}, "is no sealed model"),
        ({"sealed": str(tmp_path / "none")}, "No such file"),
    ):
        with pytest.raises(SettingsError, match=f"^model.sealed: .*{reason}") as caught:
            served(**changes)
        assert "\n" not in str(caught.value)


def test_a_port_that_is_in_use(model: Path) -> None:
    refused = pytest.raises(SettingsError, match=r"127\.0\.0\.1:\d+: Address already in use; --port \d+ is free")
    with socket.create_server(("127.0.0.1", 0)) as other, refused:
        serve_local(LOCAL, Overrides(port=other.getsockname()[1], model_folders=[model]))


def test_further_models_come_and_go_with_the_file(model: Path, tmp_path: Path) -> None:
    values = yaml.safe_load(LOCAL.read_text())
    values["applications"][0]["args"]["model"]["folder"] = str(model)
    path = tmp_path / "service.yaml"

    def write(*names: str, cores: int = 1) -> None:
        further = [
            {
                **{"name": name, "route_prefix": None, "import_path": "app.deploy:build_model"},
                "args": {
                    "model": {"folder": str(model), "served_name": name},
                    "worker": {"cpus_per_worker": cores},
                },
            }
            for name in names
        ]
        path.write_text(yaml.safe_dump(values | {"applications": [*values["applications"], *further]}))

    write("a")
    watched = WatchedConfig(path, checked_config(path), lambda: checked_config(path))
    assert watched.change() is None
    write("new", "a")
    change = watched.change()
    assert change is not None
    assert (change.gone, [one.name for one in change.new], change.needs_new_ray) == ((), ["new"], False)
    assert watched.change() is None
    path.write_text("applications: [")
    with pytest.raises(SettingsError, match="not YAML"):
        watched.change()
    assert watched.change() is None  # reported once
    write("new")
    change = watched.change()
    assert change is not None
    assert (change.gone, [one.name for one in change.new]) == (("a",), ["new"])  # "new" failed: it is tried again
    watched.served = change.config
    write("new", cores=10)
    change = watched.change()
    assert change is not None
    assert change.needs_new_ray


def test_what_needs_a_new_ray_and_what_a_new_start(model: Path, tmp_path: Path) -> None:
    values = yaml.safe_load(LOCAL.read_text())
    args = values["applications"][0]["args"]
    args["model"]["folder"] = str(model)
    path = tmp_path / "service.yaml"

    def change_of(**sections: dict[str, object]) -> ConfigChange | None:
        path.write_text(yaml.safe_dump(values))
        watched = WatchedConfig(path, checked_config(path), lambda: checked_config(path))
        changed = {**values, "applications": [{**values["applications"][0], "args": {**args}}]}
        for name, section in sections.items():
            place = changed if name in changed else changed["applications"][0]["args"]
            place[name] = place.get(name, {}) | section
        path.write_text(yaml.safe_dump(changed) + "# written\n")
        return watched.change()

    assert change_of() is None
    for section in (
        {"engine": {"guess_tokens": 1}},
        {"logging_config": {"log_level": "INFO"}},
        {"ingress": {"count": 2}},
    ):
        change = change_of(**section)
        assert change is not None
        assert (change.needs_new_ray, change.at_next_start) == (True, ())
    change = change_of(http_options={"port": 1}, attestation={"evidence": "soft"})
    assert change is not None
    assert (change.needs_new_ray, change.at_next_start) == (False, ("http_options.port", "attestation"))
    assert change.config == checked_config(path, Overrides(port=change.config.http_options.port, evidence="none"))


def test_what_only_a_cluster_has_is_refused(model: Path, tmp_path: Path) -> None:
    values = yaml.safe_load(LOCAL.read_text())
    values["applications"][0] |= {"runtime_env": {"env_vars": {"A": "1"}}}
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(SettingsError, match="runtime_env is for clusters"):
        checked_config(path, Overrides(model_folders=[model]))


def test_ray_gets_a_token_that_only_we_can_read(tmp_path: Path) -> None:
    variables = ray_environment(tmp_path, {"PYTHONPATH": "/elsewhere"})
    token = Path(variables["RAY_AUTH_TOKEN_PATH"])
    assert variables["RAY_AUTH_MODE"] == "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) >= 32
    assert variables["RAY_USAGE_STATS_ENABLED"] == "0"
    assert variables["RAY_ENABLE_AUTO_CONNECT"] == "0"
    assert int(variables["RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH"]) >= 1 << 30
    assert variables["PYTHONPATH"].endswith(":/elsewhere")
    without, package_root, _ = variables["PYTHONPATH"].split(":")
    assert (Path(without) / "pandas.py").is_file()
    assert (Path(package_root) / "app").is_dir()


def test_what_the_operator_has_set_is_kept(tmp_path: Path) -> None:
    assert "RAY_AUTH_TOKEN_PATH" not in ray_environment(tmp_path, {"RAY_AUTH_TOKEN": "0" * 32})
    disabled = ray_environment(tmp_path, {"RAY_AUTH_MODE": "disabled"})
    assert disabled["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN_PATH" not in disabled
