"""The house with keys of the HTTP tests, which the reference is compared with, and the browser of
the dashboard's.
"""

from tests.api.conftest import keyed
from tests.api.dashboard.conftest import browser

__all__ = ["browser", "keyed"]
