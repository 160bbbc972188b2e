"""The type of most bodies, answers and keyword arguments of the tests."""

from __future__ import annotations

from typing import Any, TypeAlias

Fields: TypeAlias = dict[str, Any]
"""Values of any kind by name, as in a JSON object."""
