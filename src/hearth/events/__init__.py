"""What happened, in the past tense: the one vocabulary of log line, metric, alert, row and dashboard.

An event is a frozen value without behaviour. Prompts, keys and URLs with secrets never appear in one. The documentation is made from their
docstrings.
"""

from hearth.events.gateway import *  # noqa: F403 - every kind of event, and nothing else is defined there
from hearth.events.items import *  # noqa: F403
