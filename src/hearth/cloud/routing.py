"""Who answers: the rules by which a request may go to Claude, which model it gets there, and what that costs. Pure."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase

from hearth.admission.budget import Caps
from hearth.config.settings import CloudPriceSettings, CloudSettings, Settings
from hearth.money import Price, Rates, nano_usd
from hearth.types import canonical_model

CLAUDE = "claude-"
"""How the names of Claude's models begin."""


class Why(StrEnum):
    """Why Claude answers. Only the first two leave no other way: with the others, the queue takes what Claude may not."""

    ASKED_FOR = "asked_for"
    NOT_LOCAL = "not_local"
    BACKEND_DOWN = "backend_down"
    LONG_WAIT = "long_wait"

    @property
    def only_way(self) -> bool:
        """Whether the queue could not answer at all."""
        return self in (Why.ASKED_FOR, Why.NOT_LOCAL)


def asks_for_claude(model: str | None) -> bool:
    """Whether a caller names one of Claude's own models."""
    return model is not None and model.lower().startswith(CLAUDE)


def claude_model(model: str | None, cloud: CloudSettings) -> str:
    """The Claude model for what a caller asked for: its entry in `cloud.models`, Claude's own name as it is, else `cloud.model`."""
    if model is None:
        return cloud.model
    names = (model, canonical_model(model))
    for pattern, chosen in cloud.models.items():
        if any(fnmatchcase(name, pattern) for name in names) or canonical_model(pattern) == names[1]:
            return chosen
    return model if asks_for_claude(model) else cloud.model


def caps_for(settings: Settings, caller: str) -> Caps:
    """What this caller's next call may cost."""
    cloud, external_usd = settings.cloud, settings.budget.daily_external_usd
    if cloud.daily_external_usd is not None:
        external_usd = min(external_usd, cloud.daily_external_usd)
    own_usd = next((key.daily_usd for key in settings.auth.keys if key.name == caller), None)
    return Caps(
        request=nano_usd(cloud.max_per_request_usd),
        external=nano_usd(external_usd),
        caller=None if own_usd is None else nano_usd(own_usd),
    )


def price_in(given: CloudPriceSettings) -> Price:
    """The owner's own price of a model."""
    read_usd, write_usd = given.cache_read_usd, given.cache_write_usd
    return Price(
        usual=Rates.in_usd(
            input_usd=given.input_usd,
            output_usd=given.output_usd,
            cache_read_usd=given.input_usd * 0.1 if read_usd is None else read_usd,
            cache_write_usd=given.input_usd * 1.25 if write_usd is None else write_usd,
            cache_write_hour_usd=given.input_usd * 2,
        )
    )
