"""What `hearth doctor` asks of the programs that Hearth gives the GPU to."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from hearth.backends.comfyui import TIMEOUT_S, ComfyUi
from hearth.backends.logind import Logind
from hearth.cli.doctor_engines import Finding
from hearth.config.settings import Settings
from hearth.errors import LoginManagerUnavailable
from hearth.types import GpuReading, QueueLook
from hearth.yielding.processes import Hidden
from hearth.yielding.suspend import NEEDED_S

SETTING = "gpu.yield.comfyui"
EXAMPLE = "http://127.0.0.1:8188"
FLATPAKS = (Path("/var/lib/flatpak/app"), Path("~/.local/share/flatpak/app"))
LAUNCHERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "Steam": ("steam", "com.valvesoftware.Steam"),
        "Heroic": ("heroic", "com.heroicgameslauncher.hgl"),
        "Lutris": ("lutris", "net.lutris.Lutris"),
    }
)
"""Of games: the command of each, and its Flatpak."""
_HIDDEN: Mapping[Hidden, tuple[str, str]] = MappingProxyType(
    {
        "no_proc": ("this is not Linux", "use `hearth yield -- COMMAND`"),
        "container": (
            "Hearth is in a container with processes of its own",
            "start the container with --pid=host, or use `hearth yield -- COMMAND` outside",
        ),
        "hidden": (
            "programs of other users are hidden",
            "run Hearth as your own user, or set ProtectProc=default in its unit",
        ),
    }
)


def found_launchers(flatpaks: tuple[Path, ...] = FLATPAKS) -> list[str]:
    """Those that are installed, by their names."""
    return [
        name
        for name, (command, flatpak) in LAUNCHERS.items()
        if shutil.which(command)
        or any((folder.expanduser() / flatpak).exists() for folder in flatpaks)
    ]


def check_programs(settings: Settings, launchers: list[str], hidden: Hidden) -> Iterator[Finding]:
    """Whether games get the GPU, and whether they can be seen."""
    watch = settings.gpu.yielding.watch
    if watch == "off":
        if launchers:
            says = f"{' and '.join(launchers)} found; games get what memory your models leave"
            yield Finding("ok", "yield", says, "to free it for them set gpu.yield.watch: games")
    elif hidden:
        yield hidden_programs(watch, hidden, "yield")
    else:
        yield Finding("ok", "yield", f"gpu.yield.watch is {watch}, and programs can be seen")


def hidden_programs(watch: str, hidden: Hidden, subject: str) -> Finding:
    """What it is like where programs cannot be seen."""
    why, advice = _HIDDEN[hidden]
    return Finding("warn", subject, f"gpu.yield.watch is {watch}, and sees no games: {why}", advice)


def check_comfyui(settings: Settings) -> Iterator[Finding]:
    """The ComfyUI whose queue is followed, where there is one."""
    url = settings.gpu.yielding.comfyui
    if url:
        yield _of_look(url, asyncio.run(_look(url)))


def check_pressure(reading: GpuReading | None, settings: Settings) -> Iterator[Finding]:
    """Whether a GPU shows what `gpu.yield.watch: pressure` goes by; None where none is found."""
    if settings.gpu.yielding.watch != "pressure":
        return
    if reading is None or reading.total_mib is None or reading.used_mib is None:
        says = "gpu.yield.watch is pressure, and no memory of a GPU can be read"
        yield Finding("warn", "yield", says, "set it to named, and name your programs")


def check_suspend(settings: Settings) -> Iterator[Finding]:
    """Whether it is known before this machine sleeps, and there is time for what has to be done."""
    yielding = settings.gpu.yielding
    if not yielding.suspend:
        return
    try:
        delay_s = asyncio.run(_sleep_delay_s())
    except LoginManagerUnavailable as error:
        yield _unfollowed(error.reason)
        return
    says = f"logind lets Hearth unload models before this machine sleeps, for {delay_s:g} s"
    short_s = round(yielding.grace_s + NEEDED_S - delay_s, 1)
    if short_s > 0:
        says += (
            f"; answers are interrupted {short_s:g} s earlier than gpu.yield.grace_s says: see"
            " InhibitDelayMaxSec in logind.conf"
        )
    yield Finding("ok", "suspend", says)


def check_restart_command(settings: Settings) -> Iterator[Finding]:
    """Whether there is what is to restart the model server."""
    command = settings.gpu.restart_command
    if command and shutil.which(command[0]) is None:
        says = f"there is no program '{command[0]}'"
        yield Finding("FAIL", "restart", says, "correct gpu.restart_command")


async def _sleep_delay_s() -> float:
    logind = Logind()
    try:
        delay_s = await logind.connect(lambda: None)
        if not logind.is_preparing:
            await logind.hold_up()
        return delay_s
    finally:
        logind.close()


def _unfollowed(reason: str) -> Finding:
    if reason == "no_bus":
        says = "there is no system bus here, so Hearth does not know when this machine sleeps"
        return Finding("ok", "suspend", says)
    return Finding(
        "warn",
        "suspend",
        f"logind does not say when this machine sleeps ({reason})",
        "`sudo hearth install-service --yield-units` and `sudo systemctl enable"
        " hearth-yield-sleep` free the GPU instead; or set gpu.yield.suspend to false",
    )


async def _look(url: str) -> QueueLook:
    comfyui = ComfyUi()
    try:
        return await comfyui.look(url)
    finally:
        await comfyui.aclose()


def _of_look(url: str, look: QueueLook) -> Finding:
    problem = look.problem
    match problem:
        case "":
            jobs = f"{look.jobs or 'no'} job{'' if look.jobs == 1 else 's'}"
            return Finding("ok", "ComfyUI", f"answers at {url}, {jobs}")
        case "connect" | "dns":
            return Finding(
                "warn", "ComfyUI", f"nothing answers at {url}", f"start it, or correct {SETTING}"
            )
        case "timeout":
            says = f"{url} answers nothing within {TIMEOUT_S:g} s"
            return Finding("warn", "ComfyUI", says, "try again: it may be loading a model")
        case "http_401" | "http_403":
            says = f"{url} refuses ({problem}): Hearth cannot sign in there"
            return Finding("FAIL", "ComfyUI", says, f"set {SETTING} to ComfyUI's own address")
        case _:
            says = f"what answers at {url} is no ComfyUI ({problem})"
            return Finding("FAIL", "ComfyUI", says, f"correct {SETTING}, such as {EXAMPLE}")
