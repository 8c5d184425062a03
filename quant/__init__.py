"""Converts a checkpoint to a packed low-bit model: number formats, sources, methods, the packed file, conversion.

`AutoModelForCausalLM` runs a model on the native engine with transformers' own calls; `RedoubtConfig` quantizes the
linear layers of a transformers model. Importing this package imports neither torch nor transformers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.library.auto_model import AutoModelForCausalLM as AutoModelForCausalLM
    from quant.transformers_bridge.transformers_backend import RedoubtConfig as RedoubtConfig

__all__ = ["AutoModelForCausalLM", "RedoubtConfig"]


def __getattr__(name: str) -> Any:
    if name == "AutoModelForCausalLM":
        from app.library.auto_model import AutoModelForCausalLM

        return AutoModelForCausalLM
    if name == "RedoubtConfig":
        from quant.transformers_bridge.transformers_backend import RedoubtConfig

        return RedoubtConfig
    raise AttributeError(f"module 'quant' has no attribute {name!r}")
