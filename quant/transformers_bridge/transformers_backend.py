"""A quantization backend for transformers: any of its models with our packed linear layers.

    from quant import RedoubtConfig
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=RedoubtConfig())

Linear layers are rounded to nearest and packed as they are loaded; everything else is transformers'. Imports torch and
transformers; importing this module registers the method "redoubt" with transformers. Does not save models: `redoubt
convert` makes packed folders.
"""

from typing import Any, Final

import torch
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from quant.codes.matrix import GROUP_SIZES
from quant.conversion.plan import FOUR_BIT_QTYPES
from quant.transformers_bridge.foreign_linear import FOREIGN, maker
from quant.transformers_bridge.torch_linear import PackedLinear, pack_weight, round_weight

QTYPES: Final = (*FOUR_BIT_QTYPES, "int8")
BACKENDS: Final = ("redoubt", *FOREIGN)


@register_quantization_config("redoubt")
class RedoubtConfig(QuantizationConfigMixin):
    """qtype: one of QTYPES. group_size: 32, 64 or 128 inputs a scale.

    backend: the kernels that multiply the codes: "redoubt", or for comparison "torchao" or "ipex" where installed
    (`foreign_linear`).

    modules_to_not_convert: names of layers that are not quantized; by default the output head. A layer whose inputs are
    no multiple of the group is not quantized either.
    """

    def __init__(
        self,
        qtype: str = "sym_int4",
        group_size: int = 64,
        modules_to_not_convert: list[str] | None = None,
        backend: str = "redoubt",
        **options: Any,
    ) -> None:
        """Raises ValueError naming the option, and ImportError naming a backend's package that is not installed."""
        options.pop("quant_method", None)
        if options:
            raise ValueError(f"RedoubtConfig has no option {', '.join(map(repr, options))}")
        if qtype not in QTYPES:
            raise ValueError(f"qtype: {qtype!r} is not one of {', '.join(QTYPES)}")
        if group_size not in GROUP_SIZES:
            raise ValueError(f"group_size: {group_size} is not one of {', '.join(map(str, GROUP_SIZES))}")
        if backend not in BACKENDS:
            raise ValueError(f"backend: {backend!r} is not one of {', '.join(BACKENDS)}")
        if backend != "redoubt":
            maker(backend)
        self.quant_method = "redoubt"  # type: ignore[assignment]
        self.qtype = qtype
        self.group_size = group_size
        self.modules_to_not_convert = modules_to_not_convert
        self.backend = backend


@register_quantizer("redoubt")
class RedoubtQuantizer(HfQuantizer):
    """Replaces linear layers after transformers has loaded them, one at a time, which frees float weights early."""

    quantization_config: RedoubtConfig

    def validate_environment(self, *_: Any, device_map: Any = None, **__: Any) -> None:
        """Raises ValueError for a device that is not the processor."""
        devices = device_map.values() if isinstance(device_map, dict) else [device_map]
        if any(device not in (None, "cpu", torch.device("cpu")) for device in devices):
            raise ValueError(f"device_map {device_map!r}: Redoubt's layers run on the processor only")
        if self.pre_quantized:
            raise ValueError(
                "a checkpoint in Redoubt's packed form is no transformers checkpoint: use quant's own class"
            )

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
        return model

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        config = self.quantization_config
        kept = self.get_modules_to_not_convert(model, config.modules_to_not_convert)
        names = [name for name, module in model.named_modules() if type(module) is torch.nn.Linear]
        for name in names:
            layer = model.get_submodule(name)
            if any(name == each or name.startswith(f"{each}.") or name.endswith(f".{each}") for each in kept):
                continue
            if layer.in_features % config.group_size:
                continue
            model.set_submodule(name, _quantized(f"{name}.weight", layer, config))
        return model

    def is_serializable(self) -> bool:
        """False: this backend does not save models."""
        return False

    @property
    def is_trainable(self) -> bool:
        """False: products are computed outside torch."""
        return False


def _quantized(name: str, layer: torch.nn.Linear, config: RedoubtConfig) -> torch.nn.Module:
    """The replacement of `layer`. Raises TensorError for a weight `name` that can't be quantized."""
    qtype, group = config.qtype, config.group_size
    if config.backend != "redoubt":
        made: torch.nn.Module = maker(config.backend)(name, round_weight(name, layer.weight, qtype, group), layer.bias)
        return made
    packed = pack_weight(name, layer.weight, qtype, group)
    return PackedLinear(packed, layer.out_features, layer.in_features, qtype, group, layer.bias)
