"""Alerts and messages that the tests of alerts share."""

from __future__ import annotations

from typing import Any

from hearth.alerts.channels import Message
from hearth.alerts.rules import Alert, Severity
from hearth.config.settings import AlertType


def alert(
    subject: str = "webui", kind: AlertType = AlertType.QUEUE_FULL, *, at: float = 0.0, text: str = "it is full", **more: Any
) -> Alert:
    return Alert(type=kind, subject=subject, at=at, text=text, **more)


def down(at: float = 0.0) -> Alert:
    return alert("", AlertType.BACKEND_DOWN, at=at, text="it is down", lasting=True, severity=Severity.ERROR)


def up(at: float = 0.0) -> Alert:
    return alert("", AlertType.BACKEND_DOWN, at=at, text="it is up", resolved=True)


def message(*alerts: Alert, dropped: int = 0) -> Message:
    return Message(alerts=alerts or (alert(),), dropped=dropped, wall_at=1_767_571_200.0)
