"""Which items are not let wait, since none of the models that may serve them could."""

from __future__ import annotations

from hearth.scheduling.actions import Refusal
from hearth.scheduling.state import DeviceState
from hearth.scheduling.waiting import Entry


def is_gone(device: DeviceState, entry: Entry) -> bool:
    """None of the models that may serve it is installed or in memory."""
    models = _models_of(entry)
    return bool(models) and not any(
        device.has(model) or model in device.residency.residents for model in models
    )


def hopeless(device: DeviceState, entry: Entry, now: float) -> Refusal | None:
    """Why it is not let wait."""
    if never_fits(device, entry):
        return "never_fits"
    if is_gone(device, entry):
        return "not_installed"
    return "load_failed" if _is_left_alone(device, entry, now) else None


def _is_left_alone(device: DeviceState, entry: Entry, now: float) -> bool:
    """None of the models that may serve it is loaded for now, since their servers keep failing."""
    models = _models_of(entry)
    residents = device.residency.residents
    return bool(models) and all(
        device.left_alone.get(model, now) > now and model not in residents for model in models
    )


def never_fits(device: DeviceState, entry: Entry) -> bool:
    models = _models_of(entry)
    task_type = entry.item.task_type
    return bool(models) and all(device.never_fits(model, task_type) for model in models)


def _models_of(entry: Entry) -> tuple[str, ...]:
    """The models that may serve an entry; empty for any."""
    if entry.choices or entry.wanted_model is None:
        return entry.choices
    return (entry.wanted_model,)
