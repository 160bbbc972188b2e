"""`python -m tests.simulation.digests`, which is `make digests`: one line for each workload and
policy with a digest of every decision that the scheduler takes on it.

To compare two versions, run it in both and `diff` what it prints: the workloads are those of the
differential tests, those that ship, and the homes. Virtual time, so it is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from hashlib import sha256

import click

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.engines.ollama.traits import canonical_model
from hearth.scheduling.actions import Action
from hearth.simulation.engine import simulate
from hearth.simulation.homes import HOMES
from hearth.simulation.workloads import WORKLOADS, Workload
from tests.simulation import test_differential as differential
from tests.support.workloads import Mix

_MIXES = {mix: name.lower() for name, mix in vars(differential).items() if isinstance(mix, Mix)}


def main() -> None:
    for name, workload, policy, settings in _cases():
        decisions = simulate(workload, settings).decisions
        digest = sha256("\n".join(_lines(decisions)).encode()).hexdigest()
        click.echo(f"{name:24} {policy.value:12} {len(decisions):6} {digest[:16]}")


def _cases() -> Iterator[tuple[str, Workload, PolicyName, SchedulerSettings]]:
    for policy, seed, mix in differential.CASES:
        workload, rules = differential.drawn(seed, mix)
        yield f"{_MIXES[mix]} {seed}", workload, policy, workload.settings(rules, policy)
    for seed in range(differential.HOMES):
        workload, rules = differential.drawn_home(seed)
        for policy in PolicyName:
            yield f"drawn home {seed}", workload, policy, workload.settings(rules, policy)
    base = SchedulerSettings()
    for name, build in WORKLOADS.items():
        for policy in PolicyName:
            workload = build()
            yield name, workload, policy, workload.settings(base, policy, canonical_model)
    for name, build in HOMES.items():
        workload = build()
        policy = PolicyName.ADAPTIVE
        yield name, workload, policy, workload.settings(base, policy, canonical_model)


def _lines(decisions: Iterable[tuple[float, Action]]) -> Iterator[str]:
    for at, action in decisions:
        yield f"{at:.6f} {type(action).__name__} {_values(action)}"


def _values(action: Action) -> dict[str, object]:
    """What an action says: without its device, as there is one, and without what it leaves at the
    default, so that a new field changes only the digests of decisions that use it.
    """
    values = {field.name: (getattr(action, field.name), field.default) for field in fields(action)}
    return {
        name: value
        for name, (value, default) in values.items()
        if name != "device" and value != default
    }


if __name__ == "__main__":
    main()
