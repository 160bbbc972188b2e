"""The application of the HTTP tests, which the reference is compared with, and the browser of the
dashboard's.
"""

from tests.api.conftest import gateway
from tests.api.dashboard.conftest import browser

__all__ = ["browser", "gateway"]
