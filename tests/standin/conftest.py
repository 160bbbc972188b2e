from tests.standin.house import by_hand

__all__ = ["by_hand"]
