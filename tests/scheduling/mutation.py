"""Copies of the scheduler, its shell and its tests under another package name, with one piece of source text changed.

Nothing of the real modules is touched: the copies are read from the files, changed as text, and run in module namespaces of their own,
which end with the `with` block. Used by `test_mutants` and `test_schedules`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from inspect import signature
from pathlib import Path
from types import CodeType, ModuleType

import hearth.scheduling

SCHEDULING = Path(hearth.scheduling.__file__).parent
TESTS = Path(__file__).parent
PACKAGE = "mutant"
MOVED = (
    ("hearth.scheduling", f"{PACKAGE}.scheduling"),
    ("tests.support.shell", f"{PACKAGE}.shell"),
    ("tests.scheduling", f"{PACKAGE}.tests"),
)
SENTENCES = (
    "test_bands",
    "test_aging",
    "test_packing",
    "test_affinity",
    "test_adaptive",
    "test_cost_aware",
    "test_time_slice",
    "test_preload",
    "test_preemption",
    "test_residency",
    "test_faults",
    "test_home",
    "test_timers",
    "test_traps",
    "test_orders",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug: in `module` of the scheduler, `old` (found exactly once) becomes `new`."""

    what: str
    module: str
    old: str
    new: str


class _Copies(MetaPathFinder, Loader):
    """Imports `mutant.*` from the files of the real packages."""

    def __init__(self, mutant: Mutant | None, compiled: dict[Path, CodeType]) -> None:
        self._mutant = mutant
        self._compiled = compiled

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.split(".", maxsplit=1)[0] != PACKAGE:
            return None
        is_package = fullname in {PACKAGE, f"{PACKAGE}.scheduling", f"{PACKAGE}.scheduling.policies", f"{PACKAGE}.tests"}
        return spec_from_loader(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        file = self._file(module.__name__)
        if file is not None:
            exec(self._code(file, module.__name__), module.__dict__)

    def _file(self, fullname: str) -> Path | None:
        _, _, rest = fullname.partition(".")
        if rest == "shell":
            return TESTS.parent / "support" / "shell.py"
        top, _, name = rest.partition(".")
        if not name:
            return None
        folder = SCHEDULING if top == "scheduling" else TESTS
        file = folder / f"{name.replace('.', '/')}.py"
        return file if file.exists() else file.with_suffix("") / "__init__.py"

    def _code(self, file: Path, fullname: str) -> CodeType:
        mutant = self._mutant
        if mutant is None or fullname != f"{PACKAGE}.scheduling.{mutant.module}":
            if file not in self._compiled:
                self._compiled[file] = compile(_moved(file.read_text()), str(file), "exec")
            return self._compiled[file]
        text = file.read_text()
        assert text.count(mutant.old) == 1, f"{mutant.what}: its text occurs {text.count(mutant.old)} times in {mutant.module}"
        return compile(_moved(text.replace(mutant.old, mutant.new)), f"{file}, mutated", "exec")


def _moved(text: str) -> str:
    for real, copy in MOVED:
        text = text.replace(real, copy)
    return text


@contextmanager
def copies(mutant: Mutant | None, compiled: dict[Path, CodeType]) -> Iterator[None]:
    """Inside, `mutant.*` can be imported; `compiled` keeps what did not change between two uses."""
    finder = _Copies(mutant, compiled)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
            del sys.modules[name]


def first_failure() -> str | None:
    """The first test of the copies that fails, None where all pass. Only tests without parameters are run."""
    for name in SENTENCES:
        module = importlib.import_module(f"{PACKAGE}.tests.{name}")
        for title, test in vars(module).items():
            if title.startswith("test_") and not signature(test).parameters:
                try:
                    test()
                except (AssertionError, LookupError, TypeError, ValueError, AttributeError):
                    return title
    return None


def broken_schedule(schedules: int) -> int | None:
    """The first random schedule of the copies that breaks a rule, None where none does."""
    broken = importlib.import_module(f"{PACKAGE}.tests.schedules").first_broken(range(schedules))
    return None if broken is None else broken[0]
