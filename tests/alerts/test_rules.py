"""Which event is which alert, and that no alert says what it must not."""

from __future__ import annotations

import typing
from dataclasses import replace

from hearth import events as ev
from hearth.alerts.rules import OWN_TASK, RULES, Alert
from hearth.config.settings import AlertType
from hearth.events import Event
from tests.observability.samples import all_kinds, sample
from tests.support.cases import for_each
from tests.support.fields import Fields

OF_SEVERAL_EVENTS = {
    *(AlertType.RATE_LIMITED, AlertType.QUEUE_DEPTH, AlertType.QUEUE_FULL, AlertType.TEST),
    *(AlertType.GPU_SWAP_FREQUENCY, AlertType.GPU_SWAP_LATENCY, AlertType.GPU_SWAP_OVERHEAD),
}
LOADED = "swap_failed of word ends: word is loaded."
ALERTS: list[tuple[type[Event], Fields, list[str]]] = [
    (
        ev.BackendWentDown,
        {"problem": "", "engine": ""},
        ["backend_down begins, critical: The model server does not answer (word). Requests"],
    ),
    (
        ev.BackendWentDown,
        {"problem": ""},
        ["backend_down of word begins, critical: The engine word does not answer (word). Requests"],
    ),
    (
        ev.BackendCameUp,
        {"down_s": 90.0},
        ["backend_down of word ends: The engine word answers again after 90 s."],
    ),
    (
        ev.BackendWentDown,
        {"engine": ""},
        ["backend_down begins, critical: The model server does not answer as it should. word"],
    ),
    (
        ev.BackendCameUp,
        {"down_s": 90.0, "engine": ""},
        ["backend_down ends: The model server answers again after 90 s."],
    ),
    (
        ev.BackendCameUp,
        {"down_s": 120.0, "engine": ""},
        ["backend_down ends: The model server answers again after 2 min."],
    ),
    (
        ev.BackendCameUp,
        {"down_s": 7200.0, "engine": ""},
        ["backend_down ends: The model server answers again after 2.0 h."],
    ),
    (
        ev.ItemProtected,
        {},
        ["starvation of word: A request of word for word was interrupted 3 times."],
    ),
    (
        ev.ItemDiverged,
        {},
        [
            (
                "replay_diverged of word: An answer of word to word could not continue after "
                "an interruption"
            )
        ],
    ),
    (
        ev.SwapCompleted,
        {},
        [LOADED, "model_offloaded of word begins: word does not fit on the GPU."],
    ),
    (
        ev.SwapCompleted,
        {"offloaded": False},
        [LOADED, "model_offloaded of word ends: word runs entirely on the GPU again."],
    ),
    (
        ev.SwapFailed,
        {},
        [
            (
                "swap_failed of word begins, critical: word did not load (word, after 1 s); the "
                "log has the details."
            )
        ],
    ),
    (
        ev.SwapFailed,
        {"to_model": "", "from_models": ("a",)},
        ["swap_failed of a, critical: a could not be unloaded (word)."],
    ),
    (ev.ModelOffloaded, {}, ["model_offloaded of word begins: word does not fit on the GPU."]),
    (
        ev.ResidencyDrifted,
        {},
        [
            (
                "residency_drifted, information: The model server reloaded word, word with another"
                " context length."
            ),
            LOADED,
            LOADED,
        ],
    ),
    (
        ev.ResidencyDrifted,
        {"reloaded": (), "appeared": ("word",)},
        [
            "residency_drifted, information: Another program loaded word and unloaded word, word.",
            LOADED,
        ],
    ),
    (
        ev.ResidencyDrifted,
        {"reloaded": (), "appeared": ()},
        ["residency_drifted, information: Another program unloaded word, word, or the model"],
    ),
    (
        ev.ModelUnresponsive,
        {"reloads": 3},
        [
            (
                "model_unresponsive of word, critical: word was reloaded 3 times within 10 "
                "minutes because it sent nothing."
            )
        ],
    ),
    (ev.ModelUnresponsive, {"reloads": 2}, []),
    (
        ev.ModelStaysSlow,
        {"tokens_per_s": 2.0, "usual_tokens_per_s": 40.0, "tried": ("it was loaded again",)},
        [
            (
                "model_slow of word begins, critical: word writes 2.0 tokens/s, usually 40: it"
                " seems to compute on the CPU, whatever the model server lists. What was tried did"
                " not help: it was loaded again."
            )
        ],
    ),
    (
        ev.ModelFastAgain,
        {"tokens_per_s": 39.6, "slow_s": 50.0},
        ["model_slow of word ends: word writes 40 tokens/s again, after 50 s."],
    ),
    (
        ev.EngineExited,
        {"how": "ended with exit code 1"},
        [
            (
                "engine_exited of word: The server of word ended with exit code 1 after 1 s. It is"
                " started again when the model is asked for; its last lines: hearth models log word"
            )
        ],
    ),
    (ev.GpuLost, {}, ["gpu_lost begins, critical: The GPU can no longer be read (word)."]),
    (ev.GpuRecovered, {}, ["gpu_lost ends: The GPU is back after 1 s."]),
    (ev.GpuOverheated, {}, ["gpu_hot begins: The GPU is at 1 °C; the limit is 1 °C."]),
    (ev.GpuCooledDown, {}, ["gpu_hot ends: The GPU has cooled to 1 °C after 1 s."]),
    (
        ev.GpuLeaseLate,
        {"keeps": ("a:1", "b:1")},
        [
            (
                "gpu_lease_late of word begins: Another program has waited 1 s for memory of the"
                " GPU: a:1, b:1 could not be unloaded yet. If that goes on, look into the model"
                " server's log, and restart it."
            )
        ],
    ),
    (
        ev.GpuLeaseLate,
        {"keeps": ()},
        [
            (
                "gpu_lease_late of word begins: Another program has waited 1 s for memory of the"
                " GPU: no model is loaded any more, but the memory is not free."
            )
        ],
    ),
    (ev.GpuLeaseGranted, {}, ["gpu_lease_late of word ends: The memory is free after 1 s."]),
    (ev.GpuLeaseEnded, {}, ["gpu_lease_late of word ends: The program no longer waits for it."]),
    (
        ev.BudgetThresholdReached,
        {},
        ["budget: 1.25 USD of 1.25 USD for cloud models has been spent today."],
    ),
    (
        ev.BudgetExhausted,
        {},
        [
            (
                "budget_exhausted of word: A request of word was refused: it could cost 1.25 "
                "USD, and 1.25 USD of its own 1.25"
            )
        ],
    ),
    (
        ev.BudgetExhausted,
        {"own": False, "wanted_usd": 0.0123, "spent_usd": 0.0, "limit_usd": 0.1},
        [
            (
                "budget_exhausted of word: A request of word was refused: it could cost "
                "0.0123 USD, and 0.00 USD of 0.10 USD for today is spent"
            )
        ],
    ),
    (
        ev.CloudWentDown,
        {},
        [
            (
                "cloud_down begins, critical: Claude refuses requests (word); Hearth tries again "
                "in 1 s, or after a reload."
            )
        ],
    ),
    (ev.CloudCameUp, {}, ["cloud_down ends: Claude answers again after 1 s."]),
    (
        ev.ConfigRejected,
        {"problems": ("f:1: no", "f:2: no", "f:3: no", "f:4: no")},
        [
            (
                "config_rejected begins, critical: The previous configuration stays in force. "
                "f:1: no; f:2: no; f:3: no; and 1 more."
            )
        ],
    ),
    (ev.ConfigReloaded, {}, ["config_rejected ends: A valid configuration is in force."]),
    (
        ev.StorageFailed,
        {},
        [
            (
                "storage_failed begins, critical: The request log cannot be written (word). "
                "Requests continue."
            )
        ],
    ),
    (
        ev.StorageFailed,
        {"reason": "corrupt", "detail": "Tree 5 page 6"},
        [
            (
                "storage_failed begins, critical: The database is damaged (Tree 5 page 6). Jobs "
                "are refused, other requests continue: restore a"
            )
        ],
    ),
    (
        ev.StorageRecovered,
        {},
        ["storage_failed ends: The request log can be written again. 3 entries were lost."],
    ),
    (
        ev.WalDamaged,
        {},
        [
            (
                "wal_damaged, critical: 3 frames at the end of the database's write-ahead log "
                "could not be read: what was stored last is lost,"
            )
        ],
    ),
    (
        ev.WalDamaged,
        {"certain": False, "copy": ""},
        [
            (
                "wal_damaged, critical: 3 frames at the end of the database's write-ahead log "
                "could not be read; they may be a commit that a power"
            )
        ],
    ),
    (
        ev.ClockDoubted,
        {"ahead_s": 864_000.0},
        ["clock_doubted begins: The clock jumped ahead by 10 days."],
    ),
    (
        ev.ClockConfirmed,
        {},
        ["clock_doubted ends: The clock is trusted again; old entries are deleted."],
    ),
    (
        ev.DiskRanLow,
        {},
        ["disk_low begins: The disk of the log has 1 MiB left; 1 MiB is the limit set."],
    ),
    (ev.DiskSpaceReturned, {}, ["disk_low ends: The disk of the log has 1 MiB again."]),
    (ev.LoopLagged, {}, ["loop_lag: Hearth was blocked for 1.2 s"]),
    (ev.KeysTried, {}, ["wrong_keys of word: 3 requests with a wrong key came from word"]),
    (
        ev.ConnectionsCrowded,
        {},
        [
            (
                "connections of word: word has 3 open connections, and 3 more were refused: "
                "word has reached its limit."
            )
        ],
    ),
    (
        ev.InternalFault,
        {},
        ["internal_fault of word, critical: A defect was caught in word (word); Hearth continues."],
    ),
    (ev.InternalFault, {"where": OWN_TASK}, []),  # an alert about the alerter would only feed it
]


def alerts_of(event: Event) -> tuple[Alert, ...]:
    return tuple(RULES[type(event)](event)) if type(event) in RULES else ()


def described(alert: Alert) -> str:
    whom = f" of {alert.subject}" if alert.subject else ""
    change = " begins" if alert.lasting else " ends" if alert.resolved else ""
    severity = alert.severity.word
    is_usual = alert.resolved or severity == "warning"
    return f"{alert.type}{whom}{change}{'' if is_usual else f', {severity}'}: {alert.text}"


@for_each(("kind", "fields", "expected"), ALERTS)
def test_an_event_raises_or_ends_alerts_with_what_an_owner_needs(kind, fields, expected):
    found = alerts_of(sample(kind, at=7.0, **fields))
    assert {alert.at for alert in found} <= {7.0}
    said = [described(alert) for alert in found]
    assert [text[: len(wanted)] for text, wanted in zip(said, expected, strict=True)] == expected


def test_every_rule_and_type_is_covered_and_no_other_event_is_an_alert():
    assert {kind for kind, _, _ in ALERTS} == set(RULES)
    assert {
        alert.type for kind in RULES for alert in alerts_of(sample(kind))
    } | OF_SEVERAL_EVENTS == set(AlertType)
    assert not any(alerts_of(sample(kind)) for kind in all_kinds() if kind not in RULES)
    assert all(kind.words.isascii() and kind.words.isprintable() for kind in AlertType), (
        "a header carries it"
    )


@for_each("kind", RULES)
def test_whatever_an_event_says_stays_on_one_short_line(kind):
    event = sample(kind, text="\x1b[2J\n@everyone " + "x" * 5000)
    if typing.get_type_hints(kind).get("detail") is str and kind is not ev.InternalFault:
        event = replace(event, detail="the prompt was: canary")
    for alert in alerts_of(event):
        assert alert.text.isprintable()
        assert len(alert.text) < 1500
        assert "canary" not in alert.text
