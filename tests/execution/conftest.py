"""The card that the tests of the watch over it find."""

from tests.backends.conftest import driver

__all__ = ["driver"]
