"""What `hearth serve` says on a terminal when it listens: where, in front of what, and how to point a client at it.

An event sink that prints two events and ignores the rest; the log has them all. Called by `hearth.cli.serve`.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hearth.cli.answers import printable
from hearth.cli.console import program
from hearth.cli.status_view import emulator_box
from hearth.config.settings import Settings
from hearth.events import EmulatorStarted, Event, GatewayStarted


class StartBanner:
    """Prints once the gateway listens; the emulator's box comes first, so that it is still on the screen."""

    def __init__(self, console: Console, *, settings: Settings, config_source: str) -> None:
        self._console = console
        self._settings = settings
        self._config_source = config_source

    def emit(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, EmulatorStarted):
            self._console.print(emulator_box(event.reason))
        elif isinstance(event, GatewayStarted):
            self._console.print(self._table(event))

    def _table(self, started: GatewayStarted) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, value in self._rows(started):
            table.add_row(Text(name, style="bold"), Text(value))
        return table

    def _rows(self, started: GatewayStarted) -> tuple[tuple[str, str], ...]:
        settings, url = self._settings, started.url.rstrip("/")
        return (
            (f"Hearth {started.version}", f"dashboard: {url}/"),
            ("backend", printable(started.backend)),
            ("policy", f"{settings.scheduling.policy.value}; home model {printable(settings.gpu.home_model) or 'none'}"),
            ("config", printable(self._config_source)),
            ("keys", "wanted from every caller" if started.authentication else "none: callers on this machine only"),
            ("Ollama clients", f"OLLAMA_HOST={url}"),
            ("OpenAI clients", f"OPENAI_BASE_URL={url}/v1"),
            ("Anthropic clients", f"ANTHROPIC_BASE_URL={url}"),
            ("watch it", f"{program()} status --watch --url {url}"),
        )
