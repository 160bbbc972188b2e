from tests.bootstrap.by_hand import by_hand

__all__ = ["by_hand"]
