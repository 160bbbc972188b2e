"""Service times are arithmetic over profiles."""

from __future__ import annotations

import pytest

from hearth.emulator.service_model import ServiceModel, default_profiles
from hearth.errors import ModelNotFound


def test_service_times_follow_the_profile_and_the_speed() -> None:
    service = ServiceModel(default_profiles(), speed=2.0)

    assert service.load_s("llama3.1:8b") == pytest.approx(1.0)
    assert service.load_s("llama3.1:8b", "qwen2.5-coder:14b") == pytest.approx(1.5)
    assert service.decode_s("llama3.1:8b", 112) == pytest.approx(0.5)
    assert service.service_s("llama3.1:8b", 3865, 112) == pytest.approx(1.0)
    assert service.unload_s("Nomic-Embed-Text:latest") == pytest.approx(0.25)


def test_a_model_without_a_profile_and_a_speed_of_zero_are_refused() -> None:
    with pytest.raises(ModelNotFound):
        ServiceModel(default_profiles()).load_s("nope")
    with pytest.raises(ValueError, match="positive"):
        ServiceModel((), speed=0)
