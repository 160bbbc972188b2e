"""Which of several models serves a request, each rule of `hearth.scheduling.aliases` by an example.

`ext a/b` asks for either model, the owner's favourite first.
"""

from __future__ import annotations

import pytest

from hearth.scheduling import inputs
from tests.scheduling.crowd import calls_in
from tests.scheduling.shell import Shell
from tests.scheduling.worked import Example, examples, play, settings_of
from tests.support.cases import for_each

IN_MEMORY = """
[| b]
what is in memory serves whatever comes first in the list
  ext a/b -> start 1 on b
of two in memory the one with a free slot serves [vram_gb=24 a:10 b:10 | a b]
  ext a -> start 1 on a; ext a/b -> start 2 on b
of two free ones the first of the list serves [vram_gb=24 a:10 b:10 | b a]
  ext a/b -> start 1 on a
what waits goes to whichever slot comes free first [vram_gb=24 a:10 b:10 | a b]
  - ext a -> start 1 on a; ext b -> start 2 on b; ext a/b; end 2 -> start 3 on b
  - ext a -> start 1 on a; ext b -> start 2 on b; ext a/b; ext a/b; end 1 -> start 3 on a;
    end 2 -> start 4 on b
a slot that others wait for by name is theirs [vram_gb=24 a:10 b:10 | a b]
  ext a -> start 1 on a; ext b -> start 2 on b; ext a; ext a/b; end 2 -> start 4 on b;
  end 1 -> start 3 on a
a busy model is waited for where another would have to replace it
  ext b -> start 1 on b; ext a/b; end 1 -> start 2 on b
a model is loaded beside a busy one that takes longer [vram_gb=24 a:10 b:10]
  runs b 60; learn - a 5; ext b -> start 1 on b; ext a/b -> load a; at 5; loaded -> start 2 on a
a model is not loaded beside a busy one that is free before [vram_gb=24 a:10 b:10]
  runs b 3; learn - a 5; ext b -> start 1 on b; ext a/b; at 3; end 1 -> start 2 on b
the stream in the way of an internal request is interrupted rather than its model swapped
  ext b resumable -> start 1 on b; int a/b critical -> preempt 1; stopped 1 -> start 2 on b;
  end 2 -> start 1 on b
"""

NOT_IN_MEMORY = """
[|]
an empty gpu loads what is cheapest
  - learn - a 30; learn - b 5; ext a/b -> load b; loaded -> start 1 on b
  - ext a/b -> load a; loaded -> start 1 on a
the swap there and back decides [| c]
  learn c a 5; learn a c 40; learn c b 10; learn b c 10; ext a/b -> unload c; unloaded -> load b
what others have loaded serves too
  learn - a 5; ext b -> load b; ext a/b; loaded -> start 1 on b; end 1 -> start 2 on b
what others wait for serves too although another is cheaper [| c]
  ext c -> start 1 on c; learn - a 5; ext b; ext a/b; end 1 -> unload c; unloaded -> load b;
  loaded -> start 2 on b; end 2 -> start 3 on b
what waited for a model that had to go follows the one that replaced it
  int a -> load a; loaded -> start 1 on a; ext a/b; int b critical; end 1 -> unload a;
  unloaded -> load b; loaded -> start 3 on b; end 3 -> start 2 on b
the pinned model does not have to go for an external request [vram_gb=24 p:10 a:20 b:10 | p]
  - pin p; learn - a 1; ext a/b -> load b
  - pin p; ext a; ext a/b -> load b; loaded -> start 2 on b
"""

FAILURES = """
[|]
a model that is not installed is passed over
  listed b; ext a/b -> load b
a model that is deleted meanwhile is passed over [| c]
  ext c -> start 1 on c; ext a/b; listed c b; end 1 -> unload c; unloaded -> load b
a request none of whose models is installed is refused
  - listed c; ext a/b -> fail 1 not_installed
  - ext c -> load c; ext a/b; listed c -> fail 2 not_installed
a model that is too large is passed over [vram_gb=24 a:30 b:10]
  ext a/b -> load b
a request none of whose models fits is refused [vram_gb=24 a:30 b:30]
  ext a/b -> fail 1 never_fits
a model that fails to load is passed over at once and for ten minutes
  - ext a/b -> load a; load_failed -> load b; loaded -> start 1 on b
  - ext a/b -> load a; load_failed permanent -> load b; loaded -> start 1 on b; end 1; vanishes b;
    at 599; ext a/b -> load b
  - learn - a 1; ext a/b -> load a; load_failed permanent -> load b; at 5; loaded -> start 1 on b;
    end 1; vanishes b; at 601; ext a/b -> load a
a request fails once none of its models loads
  ext a/b -> load a; load_failed permanent -> load b; load_failed permanent -> fail 1 load_failed
whoever named the model that failed is not saved by the choice of others
  ext a -> load a; ext a/b; load_failed permanent -> fail 1 load_failed, load b
a model that failed is tried again where there is no other
  listed a; ext a/b -> load a; load_failed permanent -> fail 1 load_failed; ext a/b -> load a
"""

BOUND = """
[| b]
an answer of which nothing was seen may go on elsewhere
  ext a/b resumable -> start 1 on b; int c critical -> preempt 1; stopped 1 -> unload b;
  unloaded -> load c; loaded -> start 2 on c; ext a; end 2 -> hold c for test;
  at 60 -> 10: unload c; unloaded -> load a; loaded -> start 1 on a; end 1 -> start 3 on a
a stream of which something was seen goes on with its model
  ext a/b resumable -> start 1 on b; first_byte 1 forwarded; int c critical -> preempt 1;
  stopped 1 -> unload b; unloaded -> load c; loaded -> start 2 on c; ext a;
  end 2 -> hold c for test; at 60 -> 10: unload c; unloaded -> load b; loaded -> start 1 on b
an answer that failed before it began may be given by another model
  ext a/b -> start 1 on b; listed a; fail 1 backend_gone -> start 1 on b
a stream that was read again runs five seconds before the next request of an alias
  ext b resumable -> start 1 on b; first_byte 1 forwarded; at 10; int a/b critical -> preempt 1;
  stopped 1 -> start 2 on b; end 2 -> start 1 on b; at 11; first_byte 1 forwarded; at 12;
  int a/b critical; at 15.9; at 16.1 -> 16: preempt 1
a request by name does not wait for that
  ext b resumable -> start 1 on b; first_byte 1 forwarded; at 10; int a/b critical -> preempt 1;
  stopped 1 -> start 2 on b; end 2 -> start 1 on b; at 11; first_byte 1 forwarded; at 12;
  int b critical -> preempt 1
"""

CONVERSATIONS = """
[vram_gb=24 a:10 b:10 | a b]
a conversation waits for the model that has read it
  ext a -> start 1 on a; ext a/b conversation=x -> start 2 on b; end 2; end 1;
  ext b -> start 3 on b; ext a/b conversation=x; ext a/b conversation=y -> start 5 on a;
  end 3 -> start 4 on b
it goes to another once that has left the memory
  ext a -> start 1 on a; ext a/b conversation=x -> start 2 on b; end 2; end 1; vanishes b;
  ext a/b conversation=x -> start 3 on a
it does not go back to what was loaded anew
  ext a -> start 1 on a; ext a/b conversation=x -> start 2 on b; end 2; end 1; at 1; vanishes b;
  at 2; appears b; ext a/b conversation=x -> start 3 on a
requests that come together are no turns of one conversation, though they begin alike
  ext a/b conversation=x -> start 1 on a; ext a/b conversation=x -> start 2 on b
another caller's conversation of the same name is another
  ext a -> start 1 on a; ext a/b conversation=x -> start 2 on b; end 2; end 1;
  ext a/b conversation=x caller=other -> start 3 on a
"""

GRACE = """
[| a]
internal work does not wait for external work that it can take along
  ext a -> start 1 on a; ext a/b; int b; end 1 -> unload a; unloaded -> load b;
  loaded -> start 3 on b; end 3 -> start 2 on b
internal work waits for external work that it would leave behind
  ext a -> start 1 on a; ext a/c; int b; end 1 -> start 2 on a
"""

HOLDS = """
[policy=adaptive | a]
no model is held for a caller that the next one serves as well
  asks 4 8 a/b; ext b -> unload a
it is held where the next load would keep that caller waiting for longer
  learn - b 60; asks 4 8 a/b; ext b -> hold a for assistant
a model is held for a caller that the next one does not serve
  asks 4 8 a/b; ext c -> hold a for assistant
"""

TABLES = (IN_MEMORY, NOT_IN_MEMORY, FAILURES, BOUND, CONVERSATIONS, GRACE, HOLDS)


@for_each("example", [example for table in TABLES for example in examples(table)])
def test_a_request_for_any_of_several_models(example: Example):
    play(example)


def test_an_estimate_knows_the_model_that_would_serve():
    shell = Shell(settings_of("vram_gb=24 a:10 b:10"), resident=("b",))
    shell.arrive("b")
    shell.arrive("a/b")
    found = shell.forecasts.forecast(shell.now)
    (running,) = shell.gateway.running
    expected_s = shell.device.estimates.service_s(running.item, "b")
    assert found.starts == {2: pytest.approx(expected_s)}


def test_a_hundred_unbound_requests_keep_their_order():
    shell = Shell(settings_of("policy=fifo"), resident=("a",))
    for _ in range(100):
        shell.arrive("a/b")
    served = list[int]()
    while shell.running:
        (sequence,) = shell.running
        served.append(sequence)
        shell.finish(sequence)
    assert served == list(range(1, 101))


@pytest.mark.parametrize("resident", ["a", "c"])
def test_a_decision_costs_little_for_each_request_that_waits_for_any_of_several_models(resident):
    def calls_of_a_decision(waiting: int) -> int:
        shell = Shell(settings_of("policy=adaptive"), resident=(resident,), judged=False)
        shell.arrive(resident)
        for _ in range(waiting):
            shell.arrive("a/b")
        return calls_in(lambda: shell.tell(inputs.TimerFired()))

    assert calls_of_a_decision(1000) - calls_of_a_decision(100) <= 15 * 900
