"""Programs by name: what the owner's patterns (`gpu.yield.programs`) mean, and how a name that may
be anything is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

NAME_CHARS = 255
SHOWN_CHARS = 60
KEY_CHARS = 48

WINE_TOOLS = frozenset(
    f"{name}.exe"
    for names in (
        # Wine's own services and tools, which run beside every program, and stay after it
        "cmd conhost control dllhost dxdiag explorer hh iexplore msiexec net ngen plugplay",
        "reg regedit regsvr32 rpcss rundll32 services spoolsv start svchost tabtip taskkill",
        "taskmgr uninstaller wineboot winecfg wineconsole winedbg winedevice winefile",
        "winemenubuilder winemine winepath winhlp32 wmic wscript cscript wusa xcopy xalia",
        "mscorsvw",
        # Proton's and Steam's
        "d3ddriverquery d3ddriverquery64 iscriptevaluator steam steamservice umu",
        # what reports crashes
        "crashpad_handler unitycrashhandler32 unitycrashhandler64 crashreportclient",
    )
    for name in names.split()
)
"""Programs of Wine that no pattern with a wildcard means; by its whole name one can be given."""
_WINE = re.compile(r"wine(?:64)?(?:-preloader)?")


def name_of(path: str) -> str:
    """The last part of a path, of Linux or of Windows."""
    return path[max(path.rfind("/"), path.rfind("\\")) + 1 :]


def key_of(name: str) -> str:
    """A name within the id of a lease: letters, digits and `-`; empty where it has none."""
    key = re.sub(r"[^a-z0-9]+", "-", name[:NAME_CHARS].lower()).strip("-")
    return key[:KEY_CHARS].strip("-")


def shown(name: str) -> str:
    """A name within a line of text."""
    return "".join(each if each.isprintable() else " " for each in name[:SHOWN_CHARS]).strip()


def names_of(comm: str, arguments: tuple[str, ...], script: str = "") -> frozenset[str]:
    """By what a process may be named: what the kernel calls it, its first argument, and what an
    interpreter (`script`) or Wine runs.
    """
    names = {comm, script, *arguments[:1]}
    if arguments and _WINE.fullmatch(name_of(arguments[0])):
        names.update([each for each in arguments if each.lower().endswith(".exe")][:1])
    return frozenset(name_of(name)[:NAME_CHARS] for name in names) - {""}


def named_by(patterns: Iterable[str], names: Iterable[str]) -> str:
    """The first of the names that one of the patterns means; empty where none does."""
    lowered = [pattern.lower() for pattern in patterns]
    for name in sorted(names):
        if any(_means(pattern, name.lower()) for pattern in lowered):
            return name
    return ""


def _means(pattern: str, name: str) -> bool:
    return pattern == name or (name not in WINE_TOOLS and fnmatchcase(name, pattern))
