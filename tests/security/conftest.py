"""The browser of the dashboard's tests, for a page that means harm."""

from __future__ import annotations

from tests.dashboard.conftest import browser

__all__ = ["browser"]
