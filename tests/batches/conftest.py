"""A whole gateway for the tests of the pages."""

from tests.jobs.served import live

__all__ = ["live"]
