"""A text as the owner's file: its settings, or what is wrong with it."""

from __future__ import annotations

import pytest

from hearth.config.loading import parse_config
from hearth.config.settings import Settings
from hearth.errors import ConfigError


def settings_of(text: str, **environ: str) -> Settings:
    return parse_config(text, source="f.yaml", environ=environ).settings


def problems_of(text: str, **environ: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="f.yaml", environ=environ)
    return caught.value.problems


def only_problem_of(text: str, **environ: str) -> str:
    (problem,) = problems_of(text, **environ)
    return problem
