"""How long a test waits in real time. No bound on how fast anything is: it only ends a test that waits for what never comes."""

from __future__ import annotations

WITHIN_S = 120.0
