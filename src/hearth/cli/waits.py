"""What a waiting request of the status waits for, in words."""

from __future__ import annotations

from hearth.cli.client import Json, count, duration, number, part, text

_WORDS = {
    "announced": "the announced {task}, due{soon}",
    "backend_down": "the model server to answer",
    "background": "requests of users, which go first",
    "caller_paused": "{caller} to be no longer paused",
    "handing_over": "the emulator's last answers, then Ollama",
    "held": "{model}, held for {caller}{long}",
    "lease": "another program, which has the GPU{long}",
    "left_alone": "{model}, which failed to load: next try{soon}",
    "load": "{model} to load{left}",
    "memory": "memory that other programs use",
    "others_turn": "the turn of {named} to end{soon}",
    "paused": "the end of the pause",
    "pinned": "memory: {named} is pinned",
    "refused": "the engine of {model}, which takes no more: next try{soon}",
    "slot": "a slot of {model} ({busy} of {parallel} busy)",
    "stopping": "nothing: Hearth is stopping",
    "swap": "a swap to {model} ({cost})",
    "turn": "its turn",
}
"""By the kinds of `scheduling.reasons`."""

_SHORTEST_S = 0.05
"""Less is shown as 0.0 s, which is no wait."""
_PAST = {
    "announced": "announced task",
    "backend_down": "model server",
    "background": "users",
    "batching": "batching",
    "caller_paused": "pause of its caller",
    "handing_over": "hand-over",
    "held": "held model",
    "lease": "GPU lease",
    "left_alone": "failed load",
    "load": "load",
    "memory": "memory",
    "others_turn": "others' turn",
    "paused": "pause",
    "pinned": "pinned model",
    "refused": "busy engine",
    "slot": "slot",
    "stopping": "stop",
    "swap": "swap",
    "turn": "turn",
}
"""The same of a request that has ended, beside the seconds; `batching`: of an embedding input, for
others to share its call.
"""


def waited_for(row: Json) -> str:
    """What a request of the log waited for, the longest first, without what took no time; empty
    for nothing.
    """
    waited = part(row, "waited_for")
    seconds = {kind: number(waited, kind) or 0.0 for kind in waited}
    known = [kind for kind in seconds if seconds[kind] >= _SHORTEST_S]
    longest = sorted(known, key=lambda kind: -seconds[kind])
    return ", ".join(f"{_PAST.get(kind, kind)} {duration(seconds[kind])}" for kind in longest)


def waits_for(item: Json) -> str:
    """The first reason that holds; empty where none is given. A model is named where it is not the
    request's own.
    """
    why = part(item, "waits_for")
    named = text(why, "model")
    ends_in_s = number(why, "ends_in_s")
    ends = duration(ends_in_s)
    return _WORDS.get(text(why, "kind"), "").format(
        model="the model" if named == text(item, "model") else named,
        named=named,
        task=text(why, "task"),
        caller=text(why, "caller"),
        busy=count(why, "busy"),
        parallel=count(why, "parallel"),
        cost=duration(number(why, "cost_s")),
        left=_left(why),
        soon="" if ends_in_s is None else f" in {ends}",
        long="" if ends_in_s is None else f" for up to {ends}",
    )


def _left(why: Json) -> str:
    """Of a load; nothing once it has taken as long as was expected."""
    cost_s = number(why, "cost_s")
    elapsed_s = number(why, "elapsed_s")
    if cost_s is None or elapsed_s is None or cost_s <= elapsed_s:
        return ""
    return f" ({duration(cost_s - elapsed_s)} left)"
