import socket
import stat
from pathlib import Path

import pytest

from app.local_service import checked_config, ray_environment
from app.settings import SettingsError

LOCAL = Path(__file__).parents[2] / "ray_configs/local.yaml"


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


def test_overrides_reach_the_configuration(model: Path, port: int) -> None:
    config = checked_config(LOCAL, host="127.0.0.2", port=port, model_folder=model)
    assert (config.http_options.host, config.http_options.port) == ("127.0.0.2", port)
    assert config.application.args.model.folder == str(model)
    assert config.application.args.model.name == "some-model"


def test_a_link_keeps_its_own_name(model: Path, port: int, tmp_path: Path) -> None:
    link = tmp_path / "the-model"
    link.symlink_to(model)
    config = checked_config(LOCAL, port=port, model_folder=link)
    assert config.application.args.model.name == "the-model"


def test_a_folder_that_is_no_model(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(SettingsError, match=r"some-model is no converted model: it has no model\.safetensors"):
        checked_config(LOCAL, model_folder=model)


def test_a_port_that_somebody_has(model: Path) -> None:
    refused = pytest.raises(SettingsError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use")
    with socket.create_server(("127.0.0.1", 0)) as other, refused:
        checked_config(LOCAL, port=other.getsockname()[1], model_folder=model)


def test_ray_gets_a_token_that_only_we_can_read(tmp_path: Path) -> None:
    variables = ray_environment(tmp_path, {"PYTHONPATH": "/elsewhere"})
    token = Path(variables["RAY_AUTH_TOKEN_PATH"])
    assert variables["RAY_AUTH_MODE"] == "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) >= 32
    assert variables["RAY_USAGE_STATS_ENABLED"] == "0"
    assert variables["PYTHONPATH"].endswith(":/elsewhere")
    assert (Path(variables["PYTHONPATH"].partition(":")[0]) / "app").is_dir()


def test_what_the_operator_has_set_is_kept(tmp_path: Path) -> None:
    assert "RAY_AUTH_TOKEN_PATH" not in ray_environment(tmp_path, {"RAY_AUTH_TOKEN": "0" * 32})
    disabled = ray_environment(tmp_path, {"RAY_AUTH_MODE": "disabled"})
    assert disabled["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN_PATH" not in disabled
