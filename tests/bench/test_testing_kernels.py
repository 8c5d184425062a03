import importlib
import subprocess
import sys

import pytest

from kernels import _native


@pytest.mark.parametrize("module", ["bench.kernels", "bench.ops"])
def test_a_module_without_the_kernels_of_tests_is_named_in_one_line(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(_native, "testing")
    for name in ("kernels._native.testing", "bench.testing_kernels", "bench.rates", module):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit, match=r"^This measurement needs kernels\._native\.testing.*make build") as exit_:
        importlib.import_module(module)
    assert "\n" not in str(exit_.value)


def test_what_needs_no_single_kernel_does_without() -> None:
    code = (
        "import sys; from kernels import _native; del _native.testing; sys.modules['kernels._native.testing'] = None\n"
        "import bench.rates, bench.engine, bench.serving, bench.eval.command"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
