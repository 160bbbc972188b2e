"""The application of the HTTP tests, which the reference is compared with."""

from tests.api.conftest import gateway

__all__ = ["gateway"]
