"""A quantization backend of transformers: any of its models with our packed linear layers.

    from quant import RedoubtConfig
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=RedoubtConfig())

Linear layers are rounded to nearest and packed as they are loaded; everything else is transformers'. Imports torch and
transformers, and importing this module registers the method "redoubt" with them. Does not save what it made: a packed
folder is `redoubt convert`'s.
"""

from typing import Any, Final

import torch
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from quant.matrix import GROUP_SIZES
from quant.plan import FOUR_BIT_QTYPES
from quant.torch_linear import PackedLinear, pack_weight

QTYPES: Final = (*FOUR_BIT_QTYPES, "int8")


@register_quantization_config("redoubt")
class RedoubtConfig(QuantizationConfigMixin):
    """qtype: one of QTYPES. group_size: 32, 64 or 128 inputs a scale.

    modules_to_not_convert: names of layers that stay as they are; by default the output head. A layer whose inputs are
    no multiple of the group stays, too.
    """

    def __init__(
        self,
        qtype: str = "sym_int4",
        group_size: int = 64,
        modules_to_not_convert: list[str] | None = None,
        **options: Any,
    ) -> None:
        """Raises ValueError naming the option."""
        options.pop("quant_method", None)
        if options:
            raise ValueError(f"RedoubtConfig has no option {', '.join(map(repr, options))}")
        if qtype not in QTYPES:
            raise ValueError(f"qtype: {qtype!r} is not one of {', '.join(QTYPES)}")
        if group_size not in GROUP_SIZES:
            raise ValueError(f"group_size: {group_size} is not one of {', '.join(map(str, GROUP_SIZES))}")
        self.quant_method = "redoubt"  # type: ignore[assignment]
        self.qtype = qtype
        self.group_size = group_size
        self.modules_to_not_convert = modules_to_not_convert


@register_quantizer("redoubt")
class RedoubtQuantizer(HfQuantizer):
    """Replaces linear layers after transformers has loaded them, one at a time: a float weight goes as it is packed."""

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
            packed = pack_weight(f"{name}.weight", layer.weight, config.qtype, config.group_size)
            shape = (layer.out_features, layer.in_features)
            model.set_submodule(name, PackedLinear(packed, *shape, config.qtype, config.group_size, layer.bias))
        return model

    def is_serializable(self) -> bool:
        """False: see the module."""
        return False

    @property
    def is_trainable(self) -> bool:
        """False: products are computed outside torch."""
        return False
