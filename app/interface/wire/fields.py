"""Field types shared by several families of requests. It defines no request."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_TOKENS = 2**31 - 1
MAX_MESSAGES = 65536
MAX_TOOLS = 1024
MAX_CHAT_TOP_LOGPROBS = 20
MAX_FIELDS = 64
"""The limit of fields per object: pydantic reports every unknown field, and a hostile body could have a million."""


@dataclass(frozen=True, slots=True, init=False)
class only:  # noqa: N801  # an annotation: it reads as a function
    """A documented field that supports only null and values that ask for the default behaviour."""

    allowed: tuple[object, ...]
    why: str

    def __init__(self, *allowed: object, why: str = "") -> None:
        """why: what a client that sends another value is told too."""
        object.__setattr__(self, "allowed", allowed)
        object.__setattr__(self, "why", why and f": {why}")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Checks before the type is checked."""
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Lists the allowed values, and null if the field may be null."""
        has_null = cast(Any, schema)["schema"]["type"] in ("nullable", "any")
        values = [*self.allowed, *([None] if has_null else [])]
        return {"enum": values} if self.allowed else {"type": "null", "description": "Not supported."}

    def _check(self, value: object) -> object:
        if value is None or any(type(value) is type(good) and value == good for good in self.allowed):
            return value
        hint = f"; only {' or '.join(map(json.dumps, self.allowed))} is" if self.allowed else ""
        raise PydanticCustomError("unsupported", f"is not supported{hint}{self.why}")


@dataclass(frozen=True, slots=True)
class at_most:  # noqa: N801
    """An object of bounded size, checked before its entries are."""

    entries: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Checks before the type is checked."""
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Adds the bound to the object's schema."""
        return {**handler(schema), "maxProperties": self.entries}

    def _check(self, value: object) -> object:
        if isinstance(value, dict) and len(value) > self.entries:
            raise PydanticCustomError("too_long", f"has more than {self.entries} entries")
        return value


@dataclass(frozen=True, slots=True)
class Shallow:
    """JSON of bounded depth: it is repeated in answers or stored, and too deep JSON can't be serialized."""

    levels: int = 128

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Checks before the type is checked."""
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Returns the type's own schema: JSON Schema can't express the bound."""
        return handler(schema)

    def _check(self, value: object) -> object:
        level: list[Any] = [value]
        for _ in range(self.levels + 1):
            level = [each for each in level if isinstance(each, dict | list)]
            if not level:
                return value
            level = [each for one in level for each in (one.values() if isinstance(one, dict) else one)]
        raise PydanticCustomError("too_deep", f"is nested more than {self.levels} levels deep")


def kind_of(message: str, kinds: dict[type, str]) -> Discriminator:
    """Selects a union's member by the JSON type, so that an error is about the intended member."""

    def kind(value: object) -> str | None:
        return kinds.get(type(value))

    return Discriminator(kind, custom_error_type="wrong_type", custom_error_message=message)


Unsupported = Annotated[Any, only()]
Dropped = Annotated[Any, Field(description="Accepted in any form, without effect.")]
"""Fields that clients or other services add to messages: redundant, so ignored."""
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
CacheRetention = Literal["in_memory", "in-memory", "24h"]
ThinkingBudget = Annotated[int, Field(ge=-1, le=MAX_TOKENS)]
"""The most tokens of a thought, without effect if the model does not think. 0: it does not think; -1: no limit, also
where the service has one by default."""
Verbosity = Literal["low", "medium", "high"]
Identifier = Annotated[str, StringConstraints(max_length=512)]
ModelName = Annotated[Identifier, BeforeValidator(lambda value: "" if value is None else value)]
"""The name of a model, or one of its aliases; empty, null or absent: the first of `/v1/models`."""
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    at_most(16),
]

Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
TopP = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""0: greedy."""
TopK = Annotated[int, Field(ge=-1, lt=2**31)]
"""0 (or -1, as in other servers): off."""
MinP = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""Tokens below this share of the most likely token's probability are not sampled; 1: greedy."""
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
"""Applies to prompt and output; 1: off."""
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
OutputTokens = Annotated[
    Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None,
    BeforeValidator(lambda value: None if type(value) is int and value == -1 else value),
]
"""The most output tokens; null or, as in other servers, -1: the client sets no limit."""
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Text = Annotated[str, StringConstraints(max_length=2**26)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]


class Wire(BaseModel):
    """The base of all requests: no coercion, no unknown fields, but for those that are null, as if they were absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise PydanticCustomError("too_long", f"has more than {MAX_FIELDS} fields")
        if isinstance(value, dict) and None in value.values():
            known = {name for field, info in cls.model_fields.items() for name in (field, info.alias)}
            return {name: one for name, one in value.items() if one is not None or name in known}
        return value


class OtherServersFields(BaseModel):
    """What clients of other servers always send, without effect."""

    cache_prompt: Dropped = None
    id_slot: Dropped = None
    keep_alive: Dropped = None
    mirostat: Dropped = None
    mirostat_eta: Dropped = None
    mirostat_tau: Dropped = None
    num_ctx: Dropped = None
    session_id: Dropped = None
    skip_special_tokens: Dropped = None
    think: Dropped = None


def prompt_kind(value: object) -> str | None:
    """Returns which of a prompt's four forms a value has."""
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    kinds: dict[type, str] = {str: "texts", int: "tokens", list: "many_tokens"}
    return kinds.get(type(first))


Tokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
