"""Unified memory: what does not fit into it would go into swap, so it is not loaded, not even
alone.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from hearth.scheduling import inputs
from tests.scheduling.shell import Shell
from tests.scheduling.test_lease_schedules import OFTEN, LeasedSchedule, Programs
from tests.scheduling.test_schedules import played
from tests.scheduling.worked import Example, examples, play, settings_of
from tests.support.cases import for_each

RULES = """
[a:10 b:6 d:30 | ]
models stand beside each other as on a card [a:10 b:6 | a]
  unified 24; ext b -> load b
what does not fit beside another has it unloaded [a:10 b:6 | a]
  unified 24 10; ext b -> unload a; unloaded -> load b
what is larger than all that models may have is refused
  unified 24; ext d -> fail 1 never_fits
what has no room now waits until others give theirs back, and then comes
  - unified 24 16; ext a; at 50; unified 24 12 -> load a
  - sample 24576 16384; ext a -> load a
it waits no longer than for a lease
  unified 24 16; ext a; at 59; at 60 -> fail 1 card_taken
nothing is unloaded for what could not come even then [a:10 b:6 | b]
  unified 24 16; ext a
others are served meanwhile [a:10 b:6 c:6 | b]
  unified 24 16; ext a; ext b -> start 2 on b; end 2; ext c -> unload b; unloaded -> load c
an alias is bound to what has room [a:10 b:6 | ]
  unified 24 16; ext a/b -> load b
the home model is not restored into memory that is not there [home_model=a a:10 | ]
  unified 24 16; at 500; unified 24 -> load a
the owner's order waits for memory as well
  unified 24 16; want a; at 100; unified 24 -> load a
what others use of what the owner keeps from models costs them nothing [vram_gb=12 a:10 b:6 | a]
  - unified 24 10; ext b -> unload a; unloaded -> load b
  - unified 24 20; ext b
the owner cannot give models more than there is [vram_gb=99 a:10 d:30 | a]
  unified 24; ext d -> fail 1 never_fits
without a GPU by the owner's word nothing is reckoned [vram_gb=0 a:10 d:30 | a]
  unified 24 16; ext d -> load d
a model that was never loaded needs what its file takes at least
  - files x:12; unified 24 8; ext x -> load x
  - files x:12; unified 24 16; ext x; unified 24 8 -> load x
  - files x:25; unified 24; ext x -> fail 1 never_fits
one of which nothing is known comes alone [a:10 | a]
  unified 24 12; ext x -> unload a; unloaded -> load x
a load for which memory is shortfter all is tried again and counts as no failure
  unified 24; ext a -> load a; short; at 4; at 5 -> load a; short; at 10 -> load a; short;
  unified 24 16; at 15; at 69; unified 24 -> load a; loaded -> start 1 on a
the home model is not given up for that either [home_model=a a:10 | ]
  unified 24; at 30 -> load a; short; at 35 -> load a; short; at 40 -> load a; short;
  at 45 -> load a; short; at 50 -> load a; short; at 55 -> load a
"""


@for_each("example", examples(RULES))
def test_nothing_is_loaded_into_swap(example: Example):
    play(example)


def test_a_split_model_takes_all_that_it_takes():
    """Also one that was found before the first reading said that memory is unified."""
    shell = Shell(settings_of("b:6"))
    shell.tell(inputs.Loaded(model="a", vram_mib=4096.0, size_mib=20 * 1024.0))
    residency = shell.device.residency
    assert residency.residents["a"].reserved_mib == 4096.0
    shell.tell(inputs.GpuSampled(capacity_mib=24 * 1024.0, unified=True))
    assert residency.residents["a"].reserved_mib == 20 * 1024.0
    shell.arrive("b")
    assert shell.log[-1][1] == "unload a"


CAPACITY_MIB = 24 * 1024.0


class UnifiedPrograms(Programs):
    """They take unified memory and give it back at any moment, right before a load among others;
    leases beside that.
    """

    def __init__(self, shell: Shell, number: int) -> None:
        super().__init__(shell, number)
        self.shorts = 0
        self._memory = Random(number)

    def act(self) -> bool:
        rng = self._memory
        if rng.random() < 0.9 and super().act():
            return True
        if self._shell.loading and rng.random() < 0.2:
            self._shell.load_failed(short=True)
            self.shorts += 1
            self.leases += 1
            return True
        if rng.random() >= OFTEN:
            return False
        self._sample(rng.choice((0.0, 4.0, 12.0, 20.0, 30.0)) * 1024.0)
        self.leases += 1
        return True

    def end(self) -> None:
        super().end()
        self._sample(0.0)

    def _sample(self, foreign_mib: float) -> None:
        self._shell.tell(
            inputs.GpuSampled(capacity_mib=CAPACITY_MIB, foreign_mib=foreign_mib, unified=True)
        )


class UnifiedSchedule(LeasedSchedule):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.programs: UnifiedPrograms = UnifiedPrograms(self, number)

    def settle(self) -> None:
        super().settle()
        self.seen["short"] += self.programs.shorts


def test_no_schedule_in_unified_memory_loads_into_swap():
    """Every load is judged by `DecisionChecker`."""
    seen: Counter[str] = Counter()
    for schedule in played(UnifiedSchedule, range(1_500)):
        seen += schedule.seen
    assert seen >= Counter({"short": 100, "given up": 20}), seen
