"""What tests of several packages share: the embedded model, as downloaded and as converted, and a browser.

Tests for which something is missing are skipped, so that the fast ones run in a bare checkout; `make test`
sets REDOUBT_TEST_ALL, which makes the lack a failure.
"""

import functools
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import httpx
import pytest
from hypothesis import HealthCheck, settings

from tests.sizes import examples

if TYPE_CHECKING:
    from gguf import GGUFReader
    from playwright.sync_api import Browser

_OURS = ("app", "bench", "kernels", "kuberay", "quant", "redoubt_verify", "tests", "tools")
EMBEDDED = Path(__file__).parents[1] / "models" / "smollm2-135m-instruct"

# Python collects garbage each 700 objects, and each time goes through all that tests import: a quarter of their time.
gc.set_threshold(20_000, 20, 10)

# A machine may be busy: how long an example takes says nothing.
settings.register_profile(
    "redoubt", deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("redoubt")


def pytest_configure() -> None:
    # A shell starts background jobs with Ctrl-C ignored, and everything below would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What tests convert and serve is not the user's.
    os.environ.setdefault("REDOUBT_CACHE", f"{tempfile.gettempdir()}/redoubt-tests-{os.getuid()}")
    # Every client of httpx's, and httpx.get too, reads all certificates of the machine: 23 ms of CPU time.
    transports: Any = httpx._transports.default
    transports.create_ssl_context = functools.cache(transports.create_ssl_context)


def pytest_collection_finish() -> None:
    """What is imported by now stays until the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.groups import GroupScheduling

    return GroupScheduling(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One of xdist's processes has its tests in the order of their groups."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    from tests.groups import group_of, rank_of

    for item in items:
        if any(map(item.get_closest_marker, ("service", "browser"))):
            raise pytest.UsageError(f"{item.nodeid} runs beside the others: tests.run should have it")
        if item.get_closest_marker("parity") and group_of(item.nodeid) != "transformers":
            raise pytest.UsageError(f"{item.nodeid} loads transformers: tests.groups.TRANSFORMERS should have it")
    items.sort(key=lambda item: rank_of(item.nodeid))


class _Module(pytest.Module):
    """One that imports what is not installed is skipped in a bare checkout, by the name of what is missing."""

    def _getobj(self) -> Any:
        try:
            return super()._getobj()  # type: ignore[no-untyped-call]
        except self.CollectError as error:
            cause = error.__cause__
            if os.environ.get("REDOUBT_TEST_ALL") or not isinstance(cause, ModuleNotFoundError) or not cause.name:
                raise
            if cause.name.partition(".")[0] in _OURS:
                raise
            pytest.skip(f"{cause.name} is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    module: pytest.Module = _Module.from_parent(parent, path=module_path)
    return module


def missing(reason: str) -> NoReturn:
    """Skips the test, or fails it under `make test`."""
    if os.environ.get("REDOUBT_TEST_ALL"):
        pytest.fail(reason)
    pytest.skip(reason)


def _needed(path: Path) -> Path:
    if not path.exists():
        missing(f"{path} is missing: run `make model`")
    return path


@pytest.fixture(scope="session")
def embedded_gguf() -> Path:
    """The GGUF file as it was downloaded."""
    return _needed(EMBEDDED.with_suffix(".gguf"))


@pytest.fixture(scope="session")
def embedded_reader(embedded_gguf: Path) -> Iterator["GGUFReader"]:
    """The GGUF file as ggml's own package reads it, which takes seconds: transformers does so once, too."""
    import gguf

    read, names = gguf.GGUFReader, gguf.get_tensor_name_map
    reader = read(embedded_gguf)

    def known(path: str | Path) -> "GGUFReader":
        return reader if Path(path) == embedded_gguf else read(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFReader", known)
        patch.setattr(gguf, "get_tensor_name_map", functools.cache(names))
        yield reader


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The folder of the converted model."""
    return _needed(EMBEDDED / "config.json").parent


@pytest.fixture(scope="session")
def embedded_encoder() -> Path:
    """The folder of the converted encoder that is served beside the model."""
    return _needed(EMBEDDED.with_name("all-minilm-l6-v2") / "config.json").parent


@pytest.fixture(scope="session")
def embedded_tokenizer(embedded_gguf: Path, embedded_reader: "GGUFReader") -> Any:
    """transformers' own tokenizer of the embedded GGUF."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers.AutoTokenizer.from_pretrained(embedded_gguf.parent, gguf_file=embedded_gguf.name)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Headless Chromium. For modules of synchronous tests: it keeps the thread's event loop to itself."""
    from tests.browser import chromium, executable

    found = executable()
    if found is None:
        missing("there is no chromium")
    with chromium(found) as browser:
        yield browser
