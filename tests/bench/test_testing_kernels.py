import importlib
import sys

import pytest

from kernels import _native


@pytest.mark.parametrize("module", ["bench.kernels", "bench.ops", "bench.limits"])
def test_a_module_without_the_kernels_of_tests_is_named_in_one_line(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(_native, "testing")
    for name in ("kernels._native.testing", "bench.testing_kernels", module):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit, match=r"^This measurement needs kernels\._native\.testing.*make build") as exit_:
        importlib.import_module(module)
    assert "\n" not in str(exit_.value)
