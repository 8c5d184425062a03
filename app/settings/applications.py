"""The settings of whole applications, as Ray Serve gets them: those of their parts, and which go together."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from app.messages.model_card import ModelCard
from app.settings.accounts import AccountsSettings
from app.settings.ingress import AttestationSettings, IngressSettings, RouterSettings
from app.settings.knobs import Knobs, validated
from app.settings.model import ModelSettings
from app.settings.worker import EngineSettings, MemorySettings, SleepSettings, WorkerSettings


class ModelApplicationSettings(Knobs):
    """The `args` of a model's application without an ingress: what `app.deploy.build_model` needs."""

    model: ModelSettings
    engine: EngineSettings = Field(default_factory=EngineSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    router: RouterSettings = Field(default_factory=RouterSettings)
    memory: MemorySettings = Field(default_factory=MemorySettings)
    sleep: SleepSettings = Field(default_factory=SleepSettings)

    def model_card(self) -> ModelCard:
        """How these workers describe their model to an ingress."""
        model = self.model
        return ModelCard(
            name=model.name,
            path=str(model.path),
            max_context_tokens=self.engine.max_context_tokens,
            on_overflow=model.on_overflow,
            key=model.key,
            chat_template=model.absolute().chat_template,
            sha256=model.sha256,
            thinking=model.thinking,
            short_thinking_tokens=model.short_thinking_tokens,
            aliases=tuple(model.aliases),
        )

    @model_validator(mode="after")
    def _expiration_outlives_heartbeats(self) -> Self:
        if self.router.expiration_s < 3 * self.worker.heartbeat_period_s:
            raise ValueError("router.expiration_s is less than three times worker.heartbeat_period_s")
        return self

    @model_validator(mode="after")
    def _saved_pages_are_cached_ones(self) -> Self:
        if self.memory.folder is not None and not self.engine.prefix_cache:
            raise ValueError("memory.folder: pages are saved from the prefix cache; engine.prefix_cache is false")
        return self

    @model_validator(mode="after")
    def _weights_of_sleepers_are_in_files(self) -> Self:
        if self.sleep.after_s is None:
            return self
        for why, is_copied in (
            ("model.sealed", self.model.sealed is not None),
            ("engine.weight_memory: huge_pages", self.engine.weight_memory == "huge_pages"),
            ("worker.numa: all", self.worker.numa == "all"),
        ):
            if is_copied:
                raise ValueError(f"sleep.after_s: with {why} weights are a copy in memory, which can't be given back")
        return self

    @model_validator(mode="after")
    def _step_advances_every_request(self) -> Self:
        if self.engine.least_step_tokens < self.worker.max_concurrent_requests:
            raise ValueError("engine.max_step_tokens is less than worker.max_concurrent_requests")
        return self


class ServiceSettings(ModelApplicationSettings):
    """The `args` of the application with the ingress: what `app.deploy.build` needs."""

    ingress: IngressSettings = Field(default_factory=IngressSettings)
    attestation: AttestationSettings = Field(default_factory=AttestationSettings)
    accounts: AccountsSettings | None = None

    @model_validator(mode="after")
    def _one_kind_of_keys(self) -> Self:
        if self.accounts is not None and self.ingress.api_key_file is not None:
            raise ValueError("ingress.api_key_file and accounts exclude each other: users have keys of their own")
        return self


def parse_settings(values: Mapping[str, Any]) -> ServiceSettings:
    """The `args` of the application with the ingress as settings. Raises SettingsError that names each wrong knob."""
    return validated(ServiceSettings, values, "args")
