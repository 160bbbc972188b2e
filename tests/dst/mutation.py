"""Whole houses with one piece of source text changed: every module is imported anew, one of them changed, and gone again afterwards.

Nothing of the real modules is touched. The scheduler's own bugs have a quicker way (`tests.scheduling.mutation`).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from tests.scheduling.mutation import Mutant

OURS = ("hearth", "tests")


class _Changed(MetaPathFinder, Loader):
    """Imports one module from its changed text."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = f"hearth.{mutant.module}"
        found = importlib.util.find_spec(self._name)
        assert found is not None
        assert found.origin is not None
        text = Path(found.origin).read_text()
        assert text.count(mutant.old) == 1, f"{mutant.what}: its text occurs {text.count(mutant.old)} times in {mutant.module}"
        self._code = compile(text.replace(mutant.old, mutant.new), f"{found.origin}, mutated", "exec")

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


@contextmanager
def changed(mutant: Mutant) -> Iterator[None]:
    """Inside, whatever of ours is imported is imported anew, with the bug."""
    finder = _Changed(mutant)
    real = {name: module for name, module in sys.modules.items() if name.split(".")[0] in OURS}
    for name in real:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
            del sys.modules[name]
        sys.modules.update(real)


def caught_by(mutant: Mutant, numbers: range, *, everything: bool = False) -> tuple[int, str] | None:
    """The first of these worlds in which the bug shows, and how; None where none does."""
    with changed(mutant):
        telling = importlib.import_module("tests.dst.telling")
        for number in numbers:
            try:
                telling.simulated(number, everything=everything)
            except (Exception, telling.Endless) as broken:  # noqa: BLE001 - a bug shows in whatever way it likes
                return number, f"{type(broken).__name__}: {broken}"
    return None
