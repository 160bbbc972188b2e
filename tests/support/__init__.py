"""Fakes with behaviour and the clockwork that tests share."""
