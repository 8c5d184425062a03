from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from app.interface.request.callers import read_api_keys
from app.launch.config_file import HttpOptions, load_config, shared_cores, with_overrides
from app.launch.overrides import Overrides
from app.settings.applications import ServiceSettings, parse_settings
from app.settings.knobs import SettingsError
from app.settings.worker import SleepSettings

CONFIGS = Path(__file__).parents[2] / "ray_configs"


SEALED = {"sealed": "/dev/m", "key": "kbs:///redoubt/model/m", "served_name": "m"}
FRONT = {"name": "redoubt", "import_path": "app.deploy:build", "args": {"model": {"folder": "models/m"}}}


def further(model: str, name: str | None = None, **args: Any) -> dict[str, Any]:
    return {
        "name": name or model,
        "route_prefix": None,
        "import_path": "app.deploy:build_model",
        "args": {"model": {"folder": model}, **args},
    }


def with_aliases(model: str, *aliases: str) -> dict[str, Any]:
    one = further(model)
    one["args"]["model"]["aliases"] = [*aliases]
    return one


def config_file(folder: Path, **changes: Any) -> Path:
    values: dict[str, Any] = {"applications": [FRONT]}
    path = folder / "service.yaml"
    path.write_text(yaml.safe_dump(values | changes))
    return path


@pytest.mark.parametrize("name", ["local.yaml", "cluster.yaml"])
def test_our_own_configs_are_accepted(name: str) -> None:
    config = load_config(CONFIGS / name)
    assert config.http_options.host == "127.0.0.1"
    assert config.application.args.model.name == "smollm2-135m-instruct"


@pytest.mark.parametrize(
    ("args", "knob"),
    [
        ({"modle": {}}, "args: modle: there is no such setting"),
        ({"worker": {"max_queue": 3}}, "args: worker.max_queue: there is no such setting"),
        ({"worker": {"count": "2"}}, "args: worker.count: "),
        ({"worker": {"count": True}}, "args: worker.count: "),
        ({"worker": {"count": 0}}, "args: worker.count: "),
        ({"worker": {"autoscaling": {"max_workers": 2, "min_workers": 3}}}, "args: worker.autoscaling: min_workers"),
        ({"engine": {"kv_type": "int3"}}, "args: engine.kv_type: "),
        ({"engine": {"prompt_chunk_tokens": 1024}}, "args: engine: prompt_chunk_tokens is more than"),
        ({"engine": {"prompt_chunk_tokens": 513}}, "engine: prompt_chunk_tokens is more than max_step_tokens"),
        ({"engine": {"max_step_tokens": 16, "prompt_chunk_tokens": 16}}, "engine.max_step_tokens is less than"),
        ({"model": {}}, "args: model: needs either folder or sealed"),
        ({"model": {"folder": "m", **SEALED}}, "args: model: needs either folder or sealed"),
        ({"model": {"folder": "m", "key": "file:///k"}}, "args: model: key and sha256 are for a sealed model"),
        ({"model": {"folder": "m", "sha256": "0" * 64}}, "args: model: key and sha256 are for a sealed model"),
        ({"model": {**SEALED, "key": None}}, "args: model: a sealed model needs key, and served_name"),
        ({"model": {**SEALED, "served_name": None}}, "args: model: a sealed model needs key, and served_name"),
        ({"model": {**SEALED, "key": "/k"}}, "args: model.key: "),
        ({"model": {**SEALED, "key": "http:///k"}}, "args: model.key: "),
        ({"model": {**SEALED, "sha256": "0" * 63}}, "args: model.sha256: "),
        (
            {"model": {"folder": "m", "thinking": "long"}},
            "args: model.thinking: Input should be 'off', 'short' or 'full'",
        ),
        ({"model": {"folder": "m", "short_thinking_tokens": 0}}, "args: model.short_thinking_tokens: "),
        ({"router": {"policy": "RANDOM"}}, "args: router.policy: "),
        (
            {"ingress": {"allowed_hosts": ["https://chat.example.com"]}},
            "ingress.allowed_hosts.0: this is no host name",
        ),
        (
            {"ingress": {"allowed_hosts": ["chat.example.com:8000"]}},
            "ingress.allowed_hosts.0: this is no host name",
        ),
        ({"ingress": {"allowed_hosts": ["a..b"]}}, "ingress.allowed_hosts.0: this is no host name"),
        ({"ingress": {"trusted_proxies": ["10.0.0.1/8"]}}, "ingress.trusted_proxies.0: 10.0.0.1/8 has host bits set"),
        *(
            ({"ingress": {"allowed_origins": [origin]}}, "ingress.allowed_origins.0: this is no origin")
            for origin in (
                "app.example.com",
                "https://a.example/",
                "https://a.example/b",
                "https://A.example",
                "null",
                "",
            )
        ),
        ({"ingress": {"keep_alive_comment_s": -1.0}}, "ingress.keep_alive_comment_s: "),
        ({"router": {"expiration_s": 2.0}}, "router.expiration_s is less than three times"),
    ],
)
def test_a_wrong_knob_is_refused_by_name(args: dict[str, Any], knob: str) -> None:
    with pytest.raises(SettingsError, match="^(.|\n)*" + knob.replace(".", r"\.").replace(r"\.\|", ".|")):
        parse_settings({"model": {"folder": "m"}} | args)


def test_the_card_says_how_much_a_model_thinks() -> None:
    card = parse_settings({"model": {"folder": "m", "thinking": "short", "short_thinking_tokens": 9}}).model_card()
    assert (card.thinking, card.short_thinking_tokens) == ("short", 9)
    assert parse_settings({"model": {"folder": "m"}}).model_card().thinking is None


def test_a_sealed_model_is_described_by_its_place_and_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    card = parse_settings({"model": SEALED}).model_card()
    assert (card.name, card.path, card.key, card.sha256) == ("m", "/dev/m", SEALED["key"], None)
    monkeypatch.chdir("/dev")
    model = parse_settings({"model": {**SEALED, "sealed": "m"}}).model
    assert model.absolute() == model.model_copy(update={"sealed": "/dev/m"})
    folder = parse_settings({"model": {"folder": "m"}}).model.absolute()
    assert (folder.folder, folder.sealed, folder.name) == ("/dev/m", None, "m")


def test_every_wrong_knob_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings({"model": {"folder": "m"}, "worker": {"a": 1}, "router": {"b": 2}})
    assert str(caught.value).splitlines() == [
        "args: worker.a: there is no such setting",
        "args: router.b: there is no such setting",
    ]


@pytest.mark.parametrize(
    ("changes", "knob"),
    [
        ({"http_option": {}}, "http_option: there is no such setting"),
        ({"http_options": {"prot": 8000}}, "http_options.prot: there is no such setting"),
        ({"http_options": {"port": 70000}}, "http_options.port: "),
        ({"grpc_options": {"port": 9000}}, "grpc_options: there is no such setting"),
        ({"applications": []}, "applications: "),
        ({"applications": [further("a")]}, "exactly one has import_path app.deploy:build"),
        ({"applications": [FRONT, FRONT | {"name": "again"}]}, "exactly one has import_path app.deploy:build"),
        ({"applications": [FRONT, further("a"), further("a", name="b")]}, "the same model name: m, a, a"),
        ({"applications": [FRONT, with_aliases("a", "m")]}, "two models have the name 'm', one as one of its"),
        ({"applications": [FRONT, with_aliases("a", "x", "x")]}, "aliases: 'x' is already a name of this model"),
        ({"applications": [FRONT, further("a"), further("b", name="a")]}, "the same name: redoubt, a, a"),
        ({"applications": [FRONT, further("a") | {"route_prefix": "/a"}]}, r"applications\.1\.route_prefix: "),
        (
            {"applications": [FRONT, further("a", ingress={"count": 2})]},
            r"applications\.1\.args\.ingress: there is no such setting",
        ),
    ],
)
def test_what_ray_would_ignore_is_refused(tmp_path: Path, changes: dict[str, Any], knob: str) -> None:
    path = config_file(tmp_path, **changes)
    with pytest.raises(SettingsError, match=knob) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    with pytest.raises(SettingsError, match="No such file"):
        load_config(path)
    path.write_text("- a\n")
    with pytest.raises(SettingsError, match="not a mapping"):
        load_config(path)
    path.write_text("a: [")
    with pytest.raises(SettingsError, match="not YAML"):
        load_config(path)


def test_a_configuration_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("env:REDOUBT_SERVE_CONFIG")
    with pytest.raises(SettingsError, match="there is no environment variable REDOUBT_SERVE_CONFIG"):
        load_config(path)
    monkeypatch.setenv("REDOUBT_SERVE_CONFIG", (CONFIGS / "local.yaml").read_text())
    assert load_config(path) == load_config(CONFIGS / "local.yaml")
    monkeypatch.setenv("REDOUBT_SERVE_CONFIG", "a: [")
    with pytest.raises(SettingsError, match=r"REDOUBT_SERVE_CONFIG, line 1, column [0-9]+: not YAML"):
        load_config(path)


def test_the_command_line_wins(tmp_path: Path) -> None:
    config = load_config(CONFIGS / "local.yaml")
    changed = with_overrides(config, Overrides(port=8123, model_folders=[Path("/models/other")]))
    assert (changed.http_options.host, changed.http_options.port) == ("127.0.0.1", 8123)
    assert changed.application.args.model.name == "other"
    assert changed.application.args.worker == config.application.args.worker
    with pytest.raises(SettingsError, match=r"command line: http_options\.port"):
        with_overrides(config, Overrides(port=-1))


def test_several_models_by_the_command_line() -> None:
    config = load_config(CONFIGS / "local.yaml")
    changed = with_overrides(config, Overrides(model_folders=[Path("/models/a"), Path("/models/b")]))
    assert changed.application.args.model.name == "a"
    assert changed.application.args.ingress == config.application.args.ingress
    (second,) = changed.model_applications
    assert (second.name, second.args.model.name, second.route_prefix) == ("b", "b", None)
    assert second.args.worker == config.application.args.worker
    with pytest.raises(SettingsError, match="the same name"):
        with_overrides(config, Overrides(model_folders=[Path("/models/a"), Path("/models/b"), Path("/other/b")]))


def test_further_models_get_only_the_knobs_that_they_have(tmp_path: Path) -> None:
    front = {**FRONT, "args": {**FRONT["args"], "attestation": {"tls_port": 9443}, "engine": {"guess_tokens": 3}}}  # type: ignore[dict-item]
    config = load_config(config_file(tmp_path, applications=[front]))
    changed = with_overrides(config, Overrides(model_folders=[Path("/models/a"), Path("/models/b")]))
    assert changed.application.args.attestation.tls_port == 9443
    assert [one.args.engine.guess_tokens for one in changed.applications] == [3, 3]


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8000"), ("0.0.0.0", "http://127.0.0.1:8000"), ("::", "http://[::1]:8000")],
)
def test_where_this_machine_finds_the_service(host: str, url: str) -> None:
    assert HttpOptions(host=host).url() == url
    assert HttpOptions(host=host).url("https", 8443) == url.replace("http:", "https:").replace("8000", "8443")


@pytest.mark.parametrize(("nodes", "share"), [([8], 4), ([8, 8], None), ([3], 1), ([16, 6], None)])
def test_two_models_share_a_machine_of_one_node(nodes: list[int], share: int | None) -> None:
    config = with_overrides(load_config(CONFIGS / "local.yaml"), Overrides(model_folders=[Path("a"), Path("b")]))
    assert shared_cores(config, nodes) == share


def test_cores_are_shared_out_only_where_no_setting_says_how(tmp_path: Path) -> None:
    config = with_overrides(load_config(CONFIGS / "local.yaml"), Overrides(model_folders=list(map(Path, "abc"))))
    assert shared_cores(config, [8, 6]) == 3
    with pytest.raises(SettingsError, match="3 workers are more than the 2 cores"):
        shared_cores(config, [2])
    said = load_config(config_file(tmp_path, applications=[FRONT, further("a", worker={"cpus_per_worker": 2})]))
    assert shared_cores(said, [8]) is None
    scaled = {**FRONT, "args": {**FRONT["args"], "worker": {"autoscaling": {"max_workers": 2}}}}  # type: ignore[dict-item]
    assert shared_cores(load_config(config_file(tmp_path, applications=[scaled])), [8]) == 4


def test_models_that_may_sleep_count_once_when_cores_are_shared_out() -> None:
    config = with_overrides(
        load_config(CONFIGS / "local.yaml"),
        Overrides(model_folders=list(map(Path, "abc")), sleep_after_s=600.0),
    )
    assert [one.args.sleep.after_s for one in config.applications] == [600.0] * 3
    assert shared_cores(config, [2]) is None
    (first, *others) = config.applications
    awake = first.model_copy(update={"args": first.args.model_copy(update={"sleep": SleepSettings()})})
    assert shared_cores(config.model_copy(update={"applications": [awake, *others]}), [8]) == 4


def test_settings_survive_the_way_to_a_replica() -> None:
    settings = parse_settings({"model": {"folder": "m", "served_name": "n"}, "worker": {"count": 2}})
    assert ServiceSettings.model_validate(settings.model_dump()) == settings


def test_keys_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("first-key-of-a-team\n\n  second-key-of-a-team \n", encoding="utf-8")
    assert read_api_keys(file) == ("first-key-of-a-team", "second-key-of-a-team")


@pytest.mark.parametrize(
    ("content", "reason"), [("\n \n", "no key"), ("short\n", "shorter than 16"), (None, "No such file")]
)
def test_a_file_without_good_keys_is_refused_by_name(tmp_path: Path, content: str | None, reason: str) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match=f"api_key_file {file}: .*{reason}"):
        read_api_keys(file)


def test_origins_are_as_browsers_write_them() -> None:
    given = ["https://a.example:443", "http://a.example:80", "http://[::1]:3000", "app://obsidian.md", "*"]
    settings = parse_settings({"model": {"folder": "m"}, "ingress": {"allowed_origins": given}})
    assert settings.ingress.allowed_origins == ["https://a.example", "http://a.example", *given[2:]]
    assert parse_settings({"model": {"folder": "m"}}).ingress.allowed_origins == []


def test_the_keys_file_is_the_one_that_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ingress runs in another folder than the command."""
    monkeypatch.chdir(tmp_path)
    ingress = parse_settings({"model": {"folder": "m"}, "ingress": {"api_key_file": "keys"}}).ingress
    assert ingress.at_absolute_paths().api_key_file == str(tmp_path / "keys")
    assert ingress.at_absolute_paths().access_log_folder is None
