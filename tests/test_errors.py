"""What holds of every error in the tree."""

from __future__ import annotations

import pytest

from hearth import errors
from hearth.dialects.gojson import GoJsonError
from hearth.errors import (
    BadRequest,
    ConfigError,
    GpuUnavailable,
    HearthError,
    RateLimited,
    StorageUnavailable,
)

STATUSES = {
    400: {"bad_request", "model_not_capable", "too_expensive", "untranslatable"},
    401: {"unauthenticated"},
    403: {"forbidden"},
    404: {"key_unknown", "not_found", "model_not_found"},
    405: {"method_not_allowed"},
    409: {
        "edit_by_hand",
        "edit_failed",
        "edit_refused",
        "idempotency_key_in_use",
        "order_refused",
    },
    413: {"body_too_large"},
    415: {"unsupported_media"},
    421: {"host_not_allowed"},
    422: {"idempotency_key_reused"},
    426: {"upgrade_refused"},
    429: {"budget_exceeded", "rate_limited", "too_many_wrong_keys"},
    499: {"cancelled"},
    500: {"address_unavailable", "config", "internal_error", "storage_busy", "storage_refused"},
    501: {"not_served"},
    502: {
        "backend_error",
        "backend_gone",
        "backend_protocol",
        "model_gone",
        "proxy_failed",
        "runner_died",
        "stream_diverged",
    },
    503: {
        *(
            "backend_busy",
            "backend_unreachable",
            "capacity",
            "card_taken",
            "cloud_unavailable",
            "draining",
            "engine_refused",
            "interrupted",
            "never_fits",
        ),
        *(
            "no_room_for_bodies",
            "queue_full",
            "server_changed",
            "shutting_down",
            "storage_unavailable",
        ),
        *("swap_failed", "swap_timeout", "too_many_connections", "wait_expired"),
    },
    504: {"backend_timeout", "first_byte_timeout"},
}
WORTH_ANOTHER_TRY = {
    *STATUSES[429],
    *STATUSES[502],
    *(STATUSES[503] - {"cloud_unavailable", "never_fits"}),
    *STATUSES[504],
    "idempotency_key_in_use",
}


def test_each_reason_has_one_status_and_says_whether_another_try_is_worth_it():
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, HearthError)
    ]
    assert {(kind.status, kind.reason) for kind in kinds} == {
        (status, reason) for status, them in STATUSES.items() for reason in them
    }
    assert {kind.reason for kind in kinds if kind.retryable} == WORTH_ANOTHER_TRY
    assert all((kind.__doc__ or "").strip() for kind in kinds)


def test_a_body_that_is_no_json_is_rejected_as_any_other_bad_request():
    assert (GoJsonError.status, GoJsonError.reason) == (BadRequest.status, BadRequest.reason)


@pytest.mark.parametrize(
    "error",
    [
        HearthError(),
        RateLimited("slowly", retry_after_s=2.5),
        ConfigError(["one", "two"]),
        GpuUnavailable("gpu_lost", "gone"),
        StorageUnavailable("io_error", "the disk", needs_space=True),
    ],
)
def test_an_error_is_had_again_with_all_that_it_says_and_without_where_it_was(error):
    try:
        raise error from ZeroDivisionError()
    except HearthError as raised:
        again = raised.again()
    assert (type(again), str(again), again.args, vars(again)) == (
        type(error),
        str(error),
        error.args,
        vars(error),
    )
    assert (again.__traceback__, again.__cause__, again.__context__) == (None, None, None)
    assert again is not error
