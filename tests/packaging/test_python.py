"""What a program that imports `hearth` sees: names, and errors that say which argument is wrong."""

from __future__ import annotations

from typing import Any

import pytest

import hearth
from hearth.config.settings import BackendMode
from tests.support.fields import Fields

MODEL = "llama3.1:8b"


def test_the_public_names_are_listed_and_all_there():
    assert dir(hearth) == sorted(hearth.__all__)
    assert all(getattr(hearth, name) is not None for name in dir(hearth))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hearth.nothing  # noqa: B018


@pytest.mark.parametrize("config", ["config/llm_gateway.yaml", None, {"gpu": {}}])
async def test_what_is_no_configuration_is_named_as_such(config: Any):
    says = (
        "config must be a GatewayConfig, as hearth.load_gateway_config.PATH. returns "
        f"it, not {type(config).__name__}"
    )
    with pytest.raises(TypeError, match=says):
        await hearth.build_gateway(config)
    with pytest.raises(TypeError, match=says):
        async with hearth.running_gateway(config):
            """Not reached."""


async def test_a_wrong_argument_of_a_call_is_named_and_a_right_one_answered():
    mode: Any = "emulator"  # as a program without a type checker has it
    async with await hearth.build_gateway(hearth.GatewayConfig(), backend_mode=mode) as gateway:
        assert gateway.health()["backend"]["emulator"] is True  # type: ignore[index]
        wrong: dict[str, tuple[Any, type[Exception], str]] = {
            "prompt": (None, TypeError, "prompt must be str, not NoneType"),
            "model": (7, TypeError, r"model must be str \| None, not int"),
            "max_tokens": ("5", TypeError, r"max_tokens must be int \| None, not str"),
            "task_type": (7, TypeError, r"task_type must be str \| None, not int"),
            "priority": ("critical", ValueError, "'critical' is not a valid Priority"),
        }
        for name, (value, error, says) in wrong.items():
            arguments: Fields = {"prompt": "why?", "model": MODEL, "max_tokens": 1} | {name: value}
            with pytest.raises(error, match=says):
                await gateway.worker.enqueue_internal(**arguments)
        future = await gateway.worker.enqueue_internal(
            "why?", MODEL, max_tokens=1, priority=hearth.Priority.CRITICAL
        )
        assert (await future).tokens_out == 1
    no_mode: Any = "none"
    with pytest.raises(ValueError, match="'none' is not a valid BackendMode"):
        await hearth.build_gateway(hearth.GatewayConfig(), backend_mode=no_mode)
    assert mode == BackendMode.EMULATOR
