"""The workloads that ship, by name: the list that `hearth simulate --list` prints, and the option
that takes a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

import click

from hearth.simulation import callers
from hearth.simulation.agents import AGENTS
from hearth.simulation.four_asleep import SLEEPING
from hearth.simulation.homes import HOMES
from hearth.simulation.spilling import SPILLING
from hearth.simulation.voice import VOICES
from hearth.simulation.workloads import LONG, MANY_MODELS, WORKLOADS, Builders, Workload
from hearth.simulation.yielding import YIELDING

ALL = "all"
_GROUPS: Mapping[str, Builders] = {
    f"Short; {ALL} is each of these": WORKLOADS,
    "Long; the numbers are the load in % of what the GPU can do": LONG,
    "Agents whose conversations are long": AGENTS,
    "Callers who compete": callers.COMPETING,
    "An evening that is too much for the GPU, with an elastic engine to help": SPILLING,
    "An evening with renders and games": YIELDING,
    "A voice assistant: its recogniser, chat model and voice, one after another": VOICES,
    "Four models of which one fits, and that can sleep": SLEEPING,
    "many_MODELS_LOAD_SEED: 4 to 8 models, some rarely used, and the load in %": MANY_MODELS,
    "home_RETURN_LOAD_LOAD_OTHERS: an assistant beside one or three others; when it comes back, and"
    " the seconds that a load of its model and of theirs takes": HOMES,
}
_BUILDERS = {name: build for group in _GROUPS.values() for name, build in group.items()}


class WorkloadName(click.Choice[str]):
    """As click's, but an error names those that are meant, not all of more than a hundred."""

    def __init__(self) -> None:
        super().__init__([*_BUILDERS, ALL])

    def get_invalid_choice_message(
        self,
        value: object,
        ctx: click.Context | None,  # noqa: ARG002 (click's signature)
    ) -> str:
        """What is wrong with a name, and what to do."""
        near = get_close_matches(str(value), self.choices)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        return f"{value!r} is no workload.{meant} `hearth simulate --list` prints all names."


def workloads_named(names: Sequence[str]) -> Iterator[tuple[str, Workload]]:
    """The workloads of these names, made anew; `all` stands for the short ones."""
    wanted = WORKLOADS if ALL in names else dict.fromkeys(names)
    return ((name, _BUILDERS[name]()) for name in wanted)


def _print_list(
    context: click.Context,
    _parameter: click.Parameter,
    wanted: bool,  # noqa: FBT001 (click's signature)
) -> None:
    if not wanted or context.resilient_parsing:
        return
    page = context.make_formatter()
    for title, names in _GROUPS.items():
        page.write_text(title)
        with page.indentation():
            page.write_text(" ".join(names))
        page.write_paragraph()
    click.echo(page.getvalue().rstrip())
    context.exit()


list_option = click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_list,
    help="Print the names of the built-in workloads, and exit.",
)
