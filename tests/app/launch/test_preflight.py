import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from app.launch import preflight
from app.launch.config_file import ServiceConfig, parse_config, with_overrides
from app.launch.overrides import Overrides
from app.launch.preflight import check_processor, check_start, ray_cpus
from app.launch.ray_environment import haproxy_path
from app.settings.knobs import SettingsError
from app.workers.numa import Slot
from tests.app.tiny_model import write_model, write_packed, write_weights

LOCAL = Path(__file__).parents[3] / "ray_configs/local.yaml"
GB = 1_000_000_000
TWO_CORES = [Slot(0, (0, 1))]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def service(model: Path, **args: dict[str, Any]) -> ServiceConfig:
    values = yaml.safe_load(LOCAL.read_text())
    values["applications"][0]["args"] = {"model": {"folder": str(model)}, **args}
    return parse_config(yaml.safe_dump(values), "service.yaml")


def refusal(config: ServiceConfig) -> str:
    with pytest.raises(SettingsError) as caught:
        check_start(config, TWO_CORES, 24 * GB, None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_that_can_be_served(model: Path) -> None:
    assert check_start(service(model), TWO_CORES, 24 * GB, None) == []
    (model / "tokenizer_config.json").write_text("{}")
    (note,) = check_start(service(model), TWO_CORES, 24 * GB, None)
    assert note.startswith("model has no chat template: it serves completions only.")
    template = model.with_name("t.jinja")
    template.write_text("{{ messages[0].content }}")
    config = with_overrides(service(model), Overrides(chat_template=template))
    assert check_start(config, TWO_CORES, 24 * GB, None) == []


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, (5).to_bytes(8, "little") + b"{}[]x"])
def test_weights_that_are_not_ours(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    assert f"{model} is not a converted model. Convert it first: redoubt convert {model} " in refusal(service(model))
    write_weights(model / "model.safetensors", {"format": "pt"})
    assert "is not a converted model. Convert it first" in refusal(service(model))


def test_weights_that_are_damaged(model: Path, embedded_model: Path) -> None:
    weights = model / "model.safetensors"
    whole = (embedded_model / "model.safetensors").read_bytes()
    header_bytes = 8 + int.from_bytes(whole[:8], "little")
    for size in (header_bytes - 9, header_bytes, len(whole) - 1):
        weights.write_bytes(whole[:size])
        assert f"{weights} is damaged: " in refusal(service(model))
    write_packed(weights, layout_version="1")
    assert f"has layout 1, and this Redoubt reads 2. Bring it to today's: redoubt convert {model} " in refusal(
        service(model)
    )
    write_packed(weights, matrices="{")
    assert "its header can't be read: JSONDecodeError" in refusal(service(model))


def test_files_that_an_ingress_would_refuse(model: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"temperature": -1}))
    assert "generation_config.json: temperature: " in refusal(service(model))
    (model / "tokenizer.json").unlink()
    assert f"{model}/tokenizer.json: no such file" in refusal(service(model))


def test_key_files(model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    config = service(model, ingress={"api_key_file": str(keys)})
    assert refusal(config).startswith(f"ingress.api_key_file {keys}: ")
    keys.write_text("short\n")
    assert "a key is shorter than 16 characters" in refusal(config)


def test_more_workers_than_the_machine_has_room_for(model: Path) -> None:
    config = service(model, worker={"count": 3, "cpus_per_worker": 1})
    assert "3 workers, but this machine of 2 cores has room for 2 of 1 cores" in refusal(config)
    assert "largest node has 2 cores" in refusal(service(model, worker={"cpus_per_worker": 4}))
    scaled = service(model, worker={"numa": "all", "autoscaling": {"max_workers": 2}})
    assert "2 workers, but this machine of 2 cores has room for 1 of 2 cores" in refusal(scaled)


def test_a_folder_for_the_access_log(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "log"
    expected = f"ingress.access_log_folder: {folder}: Not a directory; it must be a folder that can be written to"
    assert refusal(service(model, ingress={"access_log_folder": str(folder)})) == expected
    check_start(service(model, ingress={"access_log_folder": str(tmp_path / "log")}), TWO_CORES, 24 * GB, None)
    assert (tmp_path / "log").is_dir()


def test_more_memory_than_the_machine_has(model: Path) -> None:
    config = service(model, engine={"kv_memory_bytes": 13 * GB}, worker={"count": 2, "cpus_per_worker": 1})
    assert "kv_memory_bytes: 26.0 GB for all workers and 0.0 GB of weights are more than the 24.0 GB" in refusal(config)


def test_what_drafts_take_is_counted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "drafting_bytes", lambda *_: (2 * GB, 3 * GB))
    config = service(model, engine={"kv_memory_bytes": 10 * GB}, worker={"count": 2, "cpus_per_worker": 1})
    assert "kv_memory_bytes: 26.0 GB for all workers and 2.0 GB of weights are more than the 24.0 GB" in refusal(config)


def test_a_sealed_model_s_draft_is_counted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are not: they need the sealed files."""
    monkeypatch.setattr(preflight, "draft_bytes", lambda _: 2 * GB)
    args = service(model).application.args
    sealed = args.model_copy(update={"model": args.model.model_copy(update={"folder": None, "sealed": "device"})})
    assert preflight._drafting_bytes(sealed) == (2 * GB, 0)


def test_the_processor_is_looked_at_before_sizes_that_need_the_extension(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_yet(*_: object) -> None:
        raise AssertionError

    monkeypatch.delenv("REDOUBT_ISA", raising=False)
    monkeypatch.setattr("kernels._native.default_tier", lambda: "scalar")
    monkeypatch.setattr(preflight, "drafting_bytes", not_yet)
    assert "has no AVX2" in refusal(service(model))


def test_every_replica_finds_a_place_in_a_ray_of_our_own(model: Path) -> None:
    assert ray_cpus(service(model), 2) == 2
    assert ray_cpus(service(model, worker={"count": 2, "cpus_per_worker": 1}), 2) == 3


def test_memory_of_models_that_may_sleep(model: Path) -> None:
    def several(**sleep: float) -> ServiceConfig:
        alone = service(model, engine={"kv_memory_bytes": 10 * GB}, sleep=sleep)
        front = alone.application
        further: list[dict[str, Any]] = [
            {
                **{"name": name, "route_prefix": None, "import_path": "app.deploy:build_model"},
                "args": front.args.model_dump(),
            }
            for name in ("a", "b")
        ]
        for one in further:
            one["args"]["model"]["served_name"] = one["name"]
            for knob in ("ingress", "attestation", "accounts"):
                del one["args"][knob]
        return parse_config(
            yaml.safe_dump({"applications": [front.model_dump(exclude={"runtime_env"}), *further]}), "service.yaml"
        )

    assert "30.0 GB for all workers" in refusal(several())
    assert check_start(several(after_s=600.0), TWO_CORES, 24 * GB, None) == []
    assert refusal(several(after_s=600.0, awake_bytes=9 * GB)).startswith(
        "the model 'model' needs 10.5 GB while it is awake, and sleep.awake_bytes allows 9.0 GB;"
    )


def test_a_processor_without_avx2_serves_only_if_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make wheel-test` has an emulated one; here the kernels say what they would there."""
    monkeypatch.delenv("REDOUBT_ISA", raising=False)
    check_processor()
    monkeypatch.setattr("kernels._native.default_tier", lambda: "scalar")
    with pytest.raises(SettingsError, match=r"processor \(.+\) has no AVX2.*REDOUBT_ISA=scalar") as caught:
        check_processor()
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("REDOUBT_ISA", "scalar")
    check_processor()


def test_a_machine_without_haproxy_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert haproxy_path().is_file()
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", "/no/such/file")
    with pytest.raises(SettingsError, match=r"HAProxy: .*'/no/such/file'.*RAY_SERVE_ENABLE_HA_PROXY=0") as caught:
        haproxy_path()
    assert "\n" not in str(caught.value)
