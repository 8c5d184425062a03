"""Our 4-bit codes on the kernels of other libraries, torchao and IPEX (Intel's extension), for comparison.

Both compute in floats: torchao in the activations' type, IPEX in fp32. Neither is a requirement; each is imported when
it is used. IPEX 2.8 needs torch 2.8 and transformers 4.51, Int4OpaqueTensor needs torchao 0.18, so they are installed
in environments of their own (`bench.experiments.foreign_linear`).
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch

from quant.codes.matrix import QuantizedMatrix
from quant.errors import TensorError

_ZERO_POINT: Final = 8


def torchao_linear(name: str, matrix: QuantizedMatrix, bias: torch.Tensor | None) -> torch.nn.Module:
    """A linear layer [rows, cols] of sym_int4 or asym_int4 codes on torchao's CPU kernel.

    Raises TensorError for another type, and for rows that are not a multiple of 16.
    """
    from torchao.prototype.quantization.int4.int4_opaque_tensor import Int4OpaqueTensor  # type: ignore[import-not-found]

    rows, cols = matrix.codes.shape
    if rows % 16:
        raise TensorError(name, f"torchao's kernel needs a multiple of 16 outputs, not {rows}")
    scales = torch.from_numpy(matrix.scales.astype(np.float32))
    # The kernel has w = scale * (code - 8) + zero.
    zeros = torch.zeros_like(scales)
    if matrix.type == "asym_int4":
        assert matrix.minima is not None
        zeros = torch.from_numpy(matrix.minima.astype(np.float32)) + _ZERO_POINT * scales
    elif matrix.type != "sym_int4":
        raise TensorError(name, f"torchao's kernel takes sym_int4 and asym_int4, not {matrix.type}")
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.from_numpy(matrix.codes.astype(np.int32)), 1)
    scale_and_zero = torch.stack([scales, zeros], dim=2).transpose(0, 1).contiguous()
    weight = Int4OpaqueTensor(packed, scale_and_zero, [1, matrix.group], torch.Size((rows, cols)))
    layer = torch.nn.Linear(cols, rows, bias=bias is not None, device="meta")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias.detach().float(), requires_grad=False)
    return _InFloat32(layer)


def ipex_linear(name: str, matrix: QuantizedMatrix, bias: torch.Tensor | None) -> torch.nn.Module:
    """A linear layer [rows, cols] of sym_int4 codes on IPEX' weight-only kernel, computing in fp32.

    Raises TensorError for another type (the kernel's zero points are integers), and for sizes no multiple of 8.
    """
    from intel_extension_for_pytorch.llm.quantization import (  # type: ignore[import-not-found]
        IPEXWeightOnlyQuantizedLinear,
        QuantDtype,
        QuantMethod,
    )
    from intel_extension_for_pytorch.quantization import (  # type: ignore[import-not-found]
        WoqLowpMode,
        WoqWeightDtype,
        get_weight_only_quant_qconfig_mapping,
    )

    rows, cols = matrix.codes.shape
    if matrix.type != "sym_int4":
        raise TensorError(name, f"IPEX' kernel takes sym_int4, not {matrix.type}")
    if rows % 8 or cols % 8:
        raise TensorError(name, f"IPEX' kernel needs multiples of 8, not [{rows}, {cols}]")
    # GPTQ's layout: eight codes along the inputs in an int32, and eight zero points minus one along the outputs.
    codes = matrix.codes.T.reshape(cols // 8, 8, rows).astype(np.uint32)
    words = np.bitwise_or.reduce(codes << (4 * np.arange(8, dtype=np.uint32))[None, :, None], axis=1)
    zeros = np.full((cols // matrix.group, rows // 8), 0x77777777, np.int32)
    config = get_weight_only_quant_qconfig_mapping(
        weight_dtype=WoqWeightDtype.INT4, lowp_mode=WoqLowpMode.NONE, group_size=matrix.group
    )
    layer = IPEXWeightOnlyQuantizedLinear.from_weight(
        torch.from_numpy(words.view(np.int32)),
        torch.from_numpy(matrix.scales.T.astype(np.float32)),
        torch.from_numpy(zeros),
        cols,
        rows,
        qconfig=config,
        bias=None if bias is None else bias.detach().float(),
        group_size=matrix.group,
        quant_method=QuantMethod.GPTQ_GEMM,
        dtype=QuantDtype.INT4,
    )
    return _InFloat32(layer)


class _InFloat32(torch.nn.Module):
    """Runs an fp32 layer on activations of any float type."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] -> [..., out_features], of x's type."""
        y: torch.Tensor = self.layer(x.float())
        return y.to(x.dtype)


MakeLinear = Callable[[str, QuantizedMatrix, torch.Tensor | None], Any]
FOREIGN: Final[Mapping[str, tuple[str, MakeLinear]]] = MappingProxyType(
    {"torchao": ("torchao", torchao_linear), "ipex": ("intel_extension_for_pytorch", ipex_linear)}
)
"""By name: the required package, and the function that makes a layer."""


def maker(backend: str) -> MakeLinear:
    """Returns the function that makes `backend`'s layers. Raises ImportError naming a missing package."""
    package, make = FOREIGN[backend]
    if find_spec(package) is None:
        raise ImportError(f"backend={backend!r} needs the package {package}, which is not installed", name=package)
    return make
