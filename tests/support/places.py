"""Where the files of this repository are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout that the tests are part of."""
