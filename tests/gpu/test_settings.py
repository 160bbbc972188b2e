"""How an owner names a card."""

from __future__ import annotations

import pytest

from hearth.config.loading import parse_config
from hearth.errors import ConfigError
from tests.support.cases import for_each


@for_each("device", ["0", "7", "GPU-8f6d6a1c-2b7f-0c1e-9f51-1d2e3f405162", "MIG-8f6d6a1c-2b7f-0c1e-9f51-1d2e3f405162"])
def test_a_card_is_named_by_number_or_uuid(device):
    assert parse_config(f'gpu:\n  device: "{device}"\n', source="f", environ={}).settings.gpu.device == device


@for_each("written", ["0", "-1", '""', '"first"', '"GPU-"', '"0; rm"'])
def test_anything_else_is_an_error_with_its_line(written):
    with pytest.raises(ConfigError) as raised:
        parse_config(f"gpu:\n  device: {written}\n", source="f", environ={})
    (problem,) = raised.value.problems
    assert problem.startswith("f:2: gpu.device: ")


@pytest.mark.parametrize(
    ("key", "sane", "insane"),
    [("sample_interval_s", ("1", "3600"), ("0.9", "3601")), ("alerts.temperature_c", ("1", "150"), ("0.9", "151"))],
)
def test_limits_are_sane(key, sane, insane):
    def read(value: str) -> None:
        section, _, name = key.rpartition(".")
        line = f"{section}: {{{name}: {value}}}" if section else f"{name}: {value}"
        parse_config(f"gpu:\n  {line}\n", source="f", environ={})

    for value in sane:
        read(value)
    for value in insane:
        with pytest.raises(ConfigError, match=rf"f:2: gpu\.{key}: "):
            read(value)
