"""What fits beside what: reservations, evictions, unknown sizes (the admission rule of Peregrine's LLM queue optimizer)."""

from __future__ import annotations

from math import inf

import pytest

from hearth.config.settings import ModelSettings
from hearth.scheduling import inputs
from hearth.scheduling.inputs import Fault
from hearth.scheduling.residency import Residency
from hearth.types import WorkKind
from tests.support.shell import Shell, house_settings

SIZES = {"a": 10.0, "b": 10.0, "c": 6.0, "d": 20.0, "h": 4.0}


def sized(*, vram_gb: float | None = 24.0, resident: tuple[str, ...] = ()) -> Shell:
    models = {name: ModelSettings(vram_gb=size) for name, size in SIZES.items()}
    return Shell(house_settings(vram_gb=vram_gb, models=models), resident=resident)


def test_a_model_that_fits_is_loaded_beside_the_others():
    house = sized(resident=("a",))
    house.arrive("b")
    assert house.said == ["load b"]


def test_a_model_that_fits_is_loaded_beside_the_others_however_busy_they_are():
    house = sized(resident=("a",))
    house.arrive("a")
    house.arrive("b")
    assert house.said == ["load b"]
    house = Shell(house_settings(vram_gb=0), resident=("a",))
    house.arrive("a")
    house.arrive("b")
    assert house.said == ["load b"]


def test_models_in_memory_together_run_their_work_side_by_side():
    house = sized(resident=("a", "b"))
    house.arrive("a")
    house.arrive("b")
    assert set(house.running) == {1, 2}


def test_a_model_that_does_not_fit_evicts_the_least_recently_used_one():
    house = sized(resident=("a", "b"))
    house.arrive("a")
    house.at(1.0).finish(1)
    house.arrive("c")
    assert house.said == ["unload b"]


def test_no_more_models_are_evicted_than_needed():
    house = sized(resident=("a", "h", "b"))
    house.at(1.0).arrive("c")
    assert house.said == ["unload a"]


def test_several_models_go_where_one_is_not_enough_and_the_load_waits_for_all_of_them():
    house = sized(resident=("a", "b"))
    house.arrive("d")
    assert house.said == ["unload a", "unload b"]
    assert house.unloaded() == []
    assert house.unloaded() == ["load d"]


def test_an_idle_model_is_evicted_before_a_busy_one():
    house = sized(resident=("a", "b"))
    house.arrive("a")
    house.arrive("c")
    assert house.said == ["unload b"]


def test_a_model_that_other_work_of_the_same_rank_waits_for_is_not_evicted():
    house = sized(resident=("a", "b"))
    house.arrive("a")
    house.arrive("a")
    house.arrive("b")
    house.arrive("b")
    house.arrive("c")
    assert house.said == []
    house.finish(3)
    assert house.finish(4) == ["unload b"]


def test_unknown_sizes_mean_one_model_at_a_time():
    house = Shell(house_settings(vram_gb=24.0), resident=("a",))
    house.arrive("b")
    assert house.said == ["unload a"]


def test_an_unknown_capacity_means_one_model_at_a_time():
    house = sized(vram_gb=None, resident=("a",))
    house.arrive("h")
    assert house.said == ["unload a"]


def test_a_sampled_capacity_counts_where_none_is_configured():
    house = sized(vram_gb=None, resident=("a",))
    house.tell(inputs.GpuSampled(capacity_mib=24 * 1024.0))
    house.arrive("b")
    assert house.said == ["load b"]


def test_a_machine_without_a_gpu_has_no_limit():
    house = Shell(house_settings(vram_gb=0), resident=("a",))
    house.arrive("b")
    assert house.said == ["load b"]


def test_a_size_that_the_backend_reports_is_learned():
    house = Shell(house_settings(vram_gb=24.0))
    house.arrive("a")
    house.loaded(vram_mib=8192.0)
    house.arrive("b")
    house.finish(1)
    house.unloaded()
    house.loaded(vram_mib=8192.0)
    house.arrive("a")
    assert house.said == ["load a"]


def test_what_can_never_fit_is_refused_at_once():
    house = sized(vram_gb=16.0)
    house.arrive("d")
    assert house.said == ["fail 1 never_fits"]
    assert not house.state.entries


def test_a_reservation_ends_with_its_resident():
    house = sized(resident=("a", "b"))
    house.arrive("d")
    house.unloaded()
    house.unloaded()
    assert {name: resident.reserved_mib for name, resident in house.state.residency.residents.items()} == {"d": 20 * 1024.0}


def test_new_settings_change_reservations_and_slots_at_once():
    house = sized(resident=("a",))
    house.arrive("a")
    house.arrive("a")
    models = {name: ModelSettings(vram_gb=1.0, parallel=2) for name in SIZES}
    assert house.tell(inputs.PolicyChanged(settings=house_settings(vram_gb=24.0, models=models))) == ["start 2 on a"]
    assert house.state.residency.residents["a"].reserved_mib == 1024.0


def test_fewer_slots_stop_nobody_and_let_the_model_run_down():
    house = Shell(house_settings(parallel=2), resident=("a",))
    house.arrive("a")
    house.arrive("a")
    house.arrive("a")
    house.tell(inputs.PolicyChanged(settings=house_settings(parallel=1)))
    assert house.finish(1) == []
    assert house.finish(2) == ["start 3 on a"]


def test_a_faulty_model_beside_a_good_one_is_unloaded_alone():
    house = sized(resident=("a", "b"))
    house.arrive("b")
    house.fail(house.arrive("a"), Fault.FIRST_BYTE_TIMEOUT)
    assert house.unloading == ["a"]
    assert house.unloaded() == ["load a"]


@pytest.mark.parametrize(
    ("configured", "sampled", "expected"), [(None, None, None), (None, 512.0, 512.0), (1.0, 512.0, 1024.0), (0, 5.0, inf)]
)
def test_the_owners_word_about_memory_counts_before_the_gpus(configured, sampled, expected):
    residency = Residency(house_settings(vram_gb=configured))
    residency.sample(sampled)
    assert residency.capacity_mib == expected


def test_an_unload_that_nobody_ordered_does_not_take_a_model_from_under_running_work():
    house = sized(resident=("a",))
    running = house.arrive("a")
    house.tell(inputs.Unloaded(model="a"))
    house.finish(running)
    assert not house.state.entries


def test_with_more_models_than_can_be_searched_for_the_smallest_set_enough_of_them_go():
    models = {f"m{index}": ModelSettings(vram_gb=2.0) for index in range(12)} | {"big": ModelSettings(vram_gb=20.0)}
    house = Shell(house_settings(vram_gb=24.0, models=models), resident=tuple(name for name in models if name != "big"))
    house.arrive("big")
    assert len(house.unloading) == 10


def test_work_for_any_model_does_not_go_to_one_that_only_embeds():
    house = Shell(
        house_settings(home="h", vram_gb=24, models={"e": ModelSettings(vram_gb=1), "h": ModelSettings(vram_gb=20)}), resident=("e",)
    )
    house.finish(house.arrive("e", kind=WorkKind.EMBED))
    house.arrive(None)
    assert house.said == ["load h"]
    assert house.loaded() == ["start 2 on h"]


def test_work_for_any_model_takes_what_there_is_where_there_is_no_home():
    house = Shell(house_settings(), resident=("e",))
    house.finish(house.arrive("e", kind=WorkKind.EMBED))
    house.arrive(None)
    assert house.said == ["start 2 on e"]
