"""The command line: what reaches the parts behind it, and how mistakes are worded."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from ray.scripts.scripts import cli as ray_command
from ray.serve.scripts import cli as serve_command
from typer.testing import CliRunner

from app.cli import cli
from app.commands import serving
from app.launch import local
from app.launch.overrides import Overrides
from app.settings.knobs import SettingsError
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_serve_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def serve_local(config: Path, overrides: Overrides, **others: object) -> int:
        seen.append((config, overrides, others))
        return 3

    monkeypatch.setattr(local, "serve_local", serve_local)
    monkeypatch.setattr(serving, "model_folders", lambda names, config: [Path(name) for name in names])
    monkeypatch.setattr(serving, "ready", lambda name: Path(f"/models/{name}"))
    options = [
        "--draft",
        "auto",
        "--port",
        "8123",
        "--model",
        "Qwen3-8b",
        "--log-dir",
        "logs",
        "--dashboard",
        "--sleep-after",
        "60",
    ]
    assert run("serve", *options)[0] == 3
    overrides = Overrides(
        port=8123,
        model_folders=[Path("Qwen3-8b")],
        draft=Path("/models/qwen3-0.6b"),
        log_folder=Path("logs"),
        sleep_after_s=60.0,
    )
    assert seen == [(Path("ray_configs/local.yaml"), overrides, {"improve": [], "dashboard": True})]


def test_a_wrong_configuration_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve_local(config: Path, *_: object, **others: object) -> int:
        raise SettingsError(f"{config}: worker.cuont: there is no such setting")

    monkeypatch.setattr(local, "serve_local", serve_local)
    monkeypatch.setattr(serving, "model_folders", lambda names, config: [])
    assert run("serve", "--config", "a.yaml") == (2, "redoubt: a.yaml: worker.cuont: there is no such setting\n")


def test_ctrl_c_is_one_line_whenever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt  # while the command still imports what it needs

    monkeypatch.setitem(sys.modules, "quant.conversion.convert", Interrupting())
    assert run("convert", ".", "b") == (130, "redoubt: interrupted\n")

    def convert(*_: object, **options: object) -> None:
        raise KeyboardInterrupt("interrupted after layer 2 of 3")

    monkeypatch.setitem(sys.modules, "quant.conversion.convert", SimpleNamespace(convert=convert))
    assert run("convert", ".", "b") == (130, "redoubt: interrupted after layer 2 of 3\n")


def test_convert_tries_the_chat_template_before_it_quantizes(tmp_path: Path) -> None:
    source = write_hf_folder(tmp_path / "hf", random_tensors(CONFIG))
    settings, out = source / "tokenizer_config.json", tmp_path / "out"
    (source / "chat_template.jinja").unlink(missing_ok=True)
    settings.write_text("{}")
    command = ("convert", str(source), str(out), "--method", "rtn", "--force")
    assert "hf has no chat template: it serves completions only." in run(*command)[1]
    settings.write_text('{"chat_template": "{% if %}"}')
    status, said = run(*command)
    assert (status, "the chat template is not valid, line 1" in said, "Converting" in said) == (2, True, False)
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}")
    assert "chat template" not in run(*command, "--chat-template", str(template))[1]


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve_local(config: Path, *_: object, **others: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(local, "serve_local", serve_local)
    with pytest.raises(ZeroDivisionError):
        run("serve")


def test_convert_names_a_source_that_is_not_there(tmp_path: Path) -> None:
    status, output = run("convert", str(tmp_path / "no"), str(tmp_path / "out"))
    assert status == 2
    assert output.startswith(f"redoubt: {tmp_path / 'no'}: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("convert", "a", "b", "--group-size", "48"), "'48' is not one of '32', '64', '128'"),
        (("convert", "a", "b", "--qtype", "int5"), "'int5' is not one of"),
        (("serve", "--port", "99999"), "--port"),
        (("synth", "gpt-9", "out"), "shape 'gpt-9' is not one of smollm2-135m, smollm2-1.7b"),
        (("bench", "coffee"), "there is no bench 'coffee'"),
        (("chat", "--url", "localhost:8000"), "not an address such as http://"),
        (("playground", "--url", "localhost:8000"), "not an address such as http://"),
    ],
)
def test_a_mistake_is_named(arguments: tuple[str, ...], complaint: str) -> None:
    status, output = run(*arguments)
    assert status == 2
    assert complaint in output
    assert "Traceback" not in output


def test_help_loads_neither_ray_nor_the_engine() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from app.cli import cli;"
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0;"
        "print(sorted({'ray', 'gradio', 'kernels', 'numpy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def commands_in_comments(path: Path) -> list[list[str]]:
    """The commands that a configuration file's comments show: on lines of their own, or between backticks."""
    comments = "\n".join(line for line in path.read_text().splitlines() if line.lstrip().startswith("#"))
    own_lines = re.findall(r"(?m)^#   (\S.*?)(?:   .*)?$", comments)
    within = re.findall(r"`((?:redoubt|make|serve|ray) .*?)`", comments)
    return [shlex.split(command) for command in [*own_lines, *within]]


CONFIGS = sorted((ROOT / "ray_configs").glob("*.yaml"))


COMMANDS: dict[str, Any] = {"redoubt": typer.main.get_command(cli), "serve": serve_command, "ray": ray_command}


def assert_parses(command: Any, arguments: list[str]) -> None:
    """Raises SystemExit or a UsageError if the command refuses its arguments. Runs nothing."""
    if hasattr(command, "commands"):
        assert_parses(command.commands[arguments[0]], arguments[1:])
    else:
        command.make_context(command.name, list(arguments))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_commands_that_config_files_show_are_right(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = commands_in_comments(path)
    assert [command for command in commands if path.relative_to(ROOT).as_posix() in command]
    for name, *arguments in commands:
        if name == "make":
            targets = re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text())
            assert arguments == [] or arguments[0] in targets
        elif name == "redoubt" and arguments == ["convert"]:
            continue  # the name of a command, not a whole one
        else:
            assert_parses(COMMANDS[name], arguments)
        for argument in arguments:
            assert (ROOT / argument).is_file() or not argument.startswith("ray_configs/")
