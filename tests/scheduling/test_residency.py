"""What fits beside what: reservations, evictions, unknown sizes (the admission rule of Peregrine's LLM queue optimizer)."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from hearth.config.settings import GpuSettings, ModelSettings, SchedulerSettings
from hearth.scheduling import inputs
from hearth.scheduling.inputs import Fault
from hearth.scheduling.residency import Residency
from hearth.types import Usage, WorkKind
from tests.support.cases import for_each
from tests.support.shell import Shell, house_settings

SIZES = {"a": 10.0, "b": 10.0, "c": 6.0, "d": 20.0, "h": 4.0}


def sized(*, vram_gb: float | None = 24.0, resident: tuple[str, ...] = ()) -> Shell:
    models = {name: ModelSettings(vram_gb=size) for name, size in SIZES.items()}
    return Shell(house_settings(vram_gb=vram_gb, models=models), resident=resident)


def test_a_model_that_fits_is_loaded_beside_the_others():
    house = sized(resident=("a",))
    house.arrive("b")
    assert house.said == ["load b"]


def test_what_was_just_loaded_is_not_counted_on_by_the_next_swap():
    house = sized()
    first = house.arrive("a")
    house.arrive("d")
    house.arrive("b")
    assert house.loaded() == [f"start {first} on a", "load b"], "d, which is first, needs the place of a"


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


def test_a_model_counts_as_used_when_it_was_loaded():
    house = sized(resident=("a",))
    house.at(2.0).tell(inputs.Loaded(model="b"))
    house.arrive("c")
    assert house.said == ["unload a"]


def test_what_is_used_often_stays_though_it_was_not_used_last():
    house = sized(resident=("a", "b"))
    for _ in range(3):
        house.finish(house.arrive("a"))
    house.finish(house.at(1.0).arrive("b"))
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


def test_memory_that_others_hold_is_not_there_for_models():
    house = sized(resident=("a",))
    house.tell(inputs.GpuSampled(capacity_mib=None, foreign_mib=4 * 1024.0))
    house.arrive("b")
    assert house.said == ["load b"]
    house = sized(resident=("a",))
    house.tell(inputs.GpuSampled(capacity_mib=None, foreign_mib=4 * 1024.0 + 1))
    house.arrive("b")
    assert house.said == ["unload a"]


def test_memory_that_others_take_evicts_nothing_by_itself_and_makes_the_next_load_clear_more():
    house = sized(resident=("a", "b"))
    house.tell(inputs.GpuSampled(capacity_mib=None, foreign_mib=12 * 1024.0))
    assert house.said == []
    house.arrive("h")
    assert house.said == ["unload a", "unload b"]


def test_a_model_that_others_leave_no_room_for_is_loaded_alone():
    house = sized(resident=("a", "h"))
    house.tell(inputs.GpuSampled(capacity_mib=None, foreign_mib=8 * 1024.0))
    house.arrive("d")
    assert house.said == ["unload a", "unload h"]
    house.unloaded()
    assert house.unloaded() == ["load d"]


def test_a_gpu_that_others_fill_counts_as_full_for_work_of_the_same_rank():
    house = sized(resident=("a",))
    house.tell(inputs.GpuSampled(capacity_mib=None, foreign_mib=8 * 1024.0))
    house.arrive("a")
    house.arrive("c")
    assert house.said == ["load c"]
    house = sized(resident=("a",))
    house.tell(inputs.GpuSampled(capacity_mib=None, foreign_mib=9 * 1024.0))
    house.arrive("a")
    house.arrive("c")
    assert house.said == []


def test_what_the_gpu_says_of_its_size_refuses_nobody():
    house = sized(vram_gb=None, resident=("h",))
    house.tell(inputs.GpuSampled(capacity_mib=16 * 1024.0))
    house.arrive("d")
    assert house.said == ["unload h"]
    assert house.unloaded() == ["load d"]


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


def test_a_size_that_is_reported_later_counts_for_what_is_in_memory():
    house = Shell(house_settings(vram_gb=24.0), resident=("a",))
    house.tell(inputs.Loaded(model="a", vram_mib=8192.0))
    assert house.state.residency.residents["a"].reserved_mib == 8192.0


@pytest.mark.parametrize(("vram_gb", "said"), [(19.9, "fail 1 never_fits"), (20.0, "load d")])
def test_what_can_never_fit_is_refused_at_once(vram_gb: float, said: str) -> None:
    house = sized(vram_gb=vram_gb)
    house.arrive("d")
    assert house.said == [said]
    assert bool(house.state.entries) is (said == "load d")


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


@for_each(("configured", "sampled", "expected"), [(None, None, None), (None, 512.0, 512.0), (1.0, 512.0, 1024.0), (0, 5.0, inf)])
def test_the_owners_word_about_memory_counts_before_the_gpus(configured, sampled, expected):
    residency = Residency(house_settings(vram_gb=configured))
    residency.sample(sampled)
    assert residency.capacity_mib == expected


@for_each(
    ("configured", "sampled", "foreign", "expected"),
    [
        (None, None, 5.0, None),
        (None, 512.0, 12.0, 500.0),
        (1.0, 512.0, 24.0, 1000.0),
        (None, 512.0, 600.0, 0.0),
        (None, 512.0, -5.0, 512.0),
        (0, 5.0, 5.0, inf),
    ],
)
def test_the_room_for_models_is_what_others_leave(configured, sampled, foreign, expected):
    residency = Residency(house_settings(vram_gb=configured))
    residency.sample(sampled, foreign)
    assert residency.room_mib == expected


def test_an_unload_that_nobody_ordered_does_not_take_a_model_from_under_running_work():
    house = sized(resident=("a",))
    running = house.arrive("a")
    waiting = house.arrive("a")
    assert house.tell(inputs.Unloaded(model="a")) == []
    assert house.finish(running) == [f"start {waiting} on a"]


def test_an_unload_that_nobody_ordered_does_not_end_a_load():
    house = sized()
    first = house.arrive("a")
    assert house.tell(inputs.Unloaded(model="a")) == []
    assert house.loaded() == [f"start {first} on a"]


def crowded(sizes_gb: dict[str, float], newcomer_gb: float) -> Shell:
    models = {name: ModelSettings(vram_gb=size) for name, size in {**sizes_gb, "big": newcomer_gb}.items()}
    house = Shell(house_settings(vram_gb=24.0, models=models), resident=tuple(sizes_gb))
    house.arrive("big")
    return house


def test_among_many_models_no_more_are_evicted_than_needed():
    assert len(crowded({f"m{number}": 2.0 for number in range(12)}, 20.0).unloading) == 10
    assert crowded({f"m{number}": 1.0 for number in range(12)} | {"m12": 12.0}, 12.0).unloading == ["m12"]


def test_the_largest_go_where_too_many_sets_would_have_to_be_looked_at():
    sizes = {f"m{number:02}": 0.5 for number in range(20)} | {f"n{number}": 2.0 for number in range(7)}
    assert set(crowded(sizes, 12.0).unloading) <= {name for name in sizes if name.startswith("n")}


def budgeted(*, vram_gb: float = 24.0, budgets: dict[str, float] | None = None) -> SchedulerSettings:
    models = {"a": ModelSettings(vram_gb=20.0), "b": ModelSettings(vram_gb=10.0)}
    return replace(
        house_settings(models=models),
        gpu=GpuSettings(home_model="", vram_gb=vram_gb, task_vram_gb=budgets or {"letter": 2.5, "study": 22.0}),
    )


def test_the_budget_of_a_task_stands_in_for_the_models_own():
    house = Shell(budgeted(), resident=("a",))
    house.arrive("b", task_type="letter")
    assert house.said == ["load b"]
    assert house.state.residency.residents["b"].reserved_mib == 2.5 * 1024


def test_without_a_budget_of_its_task_the_models_own_size_counts():
    house = Shell(budgeted(), resident=("a",))
    house.arrive("b", task_type="something else")
    assert house.said == ["unload a"]


def test_a_budget_makes_a_model_fit_whose_size_nobody_knows():
    house = Shell(budgeted(), resident=("a",))
    house.arrive("c", task_type="letter")
    assert house.said == ["load c"]


def test_a_larger_budget_than_the_models_own_makes_room_for_itself():
    house = Shell(budgeted(), resident=("b",))
    house.arrive("c", task_type="study")
    assert house.said == ["unload b"]


def test_the_reservation_is_that_of_the_load_until_the_model_goes():
    house = Shell(budgeted())
    house.arrive("b", task_type="letter")
    house.loaded(vram_mib=9000.0)
    assert house.state.residency.residents["b"].reserved_mib == 2.5 * 1024
    house.finish(1)
    house.tell(inputs.Loaded(model="b", vram_mib=9000.0))
    assert house.state.residency.residents["b"].reserved_mib == 2.5 * 1024
    house.tell(inputs.PolicyChanged(settings=budgeted(budgets={"letter": 3.0})))
    assert house.state.residency.residents["b"].reserved_mib == 3.0 * 1024
    house.tell(inputs.Unloaded(model="b"))
    house.tell(inputs.Loaded(model="b"))
    assert house.state.residency.residents["b"].reserved_mib == 10.0 * 1024


def test_a_task_whose_budget_can_never_fit_is_refused_at_once_and_others_of_its_model_are_not():
    house = Shell(budgeted(vram_gb=21.0), resident=())
    refused = house.arrive("b", task_type="study")
    assert house.said == [f"fail {refused} never_fits"]
    house.arrive("b")
    assert house.said == ["load b"]


def test_full_slots_do_not_keep_out_a_modest_task_of_a_large_model():
    house = Shell(budgeted(), resident=("a",))
    house.arrive("a")
    house.arrive("b", task_type="letter")
    assert house.said == ["load b"]


def test_what_waits_and_could_never_be_loaded_after_a_reload_is_told_so():
    house = Shell(budgeted(), resident=("a",))
    house.arrive("a")
    waiting = house.arrive("a")
    small = house.arrive("a", task_type="letter")
    house.tell(inputs.PolicyChanged(settings=budgeted(vram_gb=16.0)))
    assert house.said == [f"fail {waiting} never_fits"]
    assert small in house.state.entries


def test_models_that_take_turns_are_loaded_no_more_often_than_they_serve():
    """Never an endless loop of evictions: each load serves somebody before it is undone."""
    house = Shell(budgeted())
    for _ in range(10):
        for model in ("a", "b", "c"):
            house.arrive(model)
    house.quiesce(bound=200)
    loads = [said for _, said in house.log if said.startswith("load")]
    starts = [said for _, said in house.log if said.startswith("start")]
    assert len(starts) == 30
    assert len(loads) <= len(starts)


def test_work_for_any_model_goes_to_the_one_that_was_used_last():
    house = sized(resident=("a", "b"))
    house.finish(house.at(1.0).arrive("a"))
    anywhere = house.arrive(None)
    assert house.said == [f"start {anywhere} on a"]


def test_work_for_any_model_does_not_go_to_one_that_only_embeds():
    house = Shell(
        house_settings(home="h", vram_gb=24, models={"e": ModelSettings(vram_gb=1), "h": ModelSettings(vram_gb=20)}), resident=("e",)
    )
    house.finish(house.arrive("e", kind=WorkKind.EMBED))
    house.arrive(None)
    assert house.said == ["load h"]
    assert house.loaded() == ["start 2 on h"]


@pytest.mark.parametrize("kind", [WorkKind.GENERATE, WorkKind.LOAD])
def test_what_an_embedding_model_was_asked_for_in_vain_does_not_make_it_write(kind):
    house = Shell(
        house_settings(home="h", vram_gb=24, models={"e": ModelSettings(vram_gb=1), "h": ModelSettings(vram_gb=20)}), resident=("e",)
    )
    house.finish(house.arrive("e", kind=WorkKind.EMBED))
    house.finish(house.arrive("e", kind=kind))
    house.arrive(None)
    assert house.said == ["load h"]


def test_a_model_that_embeds_and_has_written_serves_work_for_any_model():
    house = Shell(house_settings(home="h"), resident=("e",))
    house.finish(house.arrive("e", kind=WorkKind.EMBED))
    house.finish(house.arrive("e"), Usage(output_tokens=3))
    house.arrive(None)
    assert house.said == ["start 3 on e"]


def test_work_for_any_model_takes_what_there_is_where_there_is_no_home():
    house = Shell(house_settings(), resident=("e",))
    house.finish(house.arrive("e", kind=WorkKind.EMBED))
    house.arrive(None)
    assert house.said == ["start 2 on e"]


def test_a_home_model_that_embeds_and_is_busy_is_not_loaded_over_itself():
    house = Shell(house_settings(home="h"), resident=("h",))
    house.finish(house.arrive("h", kind=WorkKind.EMBED))
    busy = house.arrive("h", kind=WorkKind.EMBED)
    house.arrive(None)
    assert house.said == []
    house.finish(busy)
    assert house.said == ["start 3 on h"]


def test_a_swap_by_somebody_else_is_one_fact():
    house = Shell(house_settings(home="h"), resident=("h",))
    house.tell(inputs.Drifted(appeared=(inputs.Loaded(model="b"),), vanished=(inputs.Unloaded(model="h"),)))
    assert (set(house.state.residency.residents), house.said) == ({"b"}, [])
    house.arrive("b")
    assert house.said == ["start 1 on b"]


def test_a_prompt_for_any_model_does_not_bring_a_home_model_that_can_never_fit():
    house = Shell(house_settings(vram_gb=12.0, models={"c": ModelSettings(vram_gb=18.0)}, home="c"))
    house.arrive(None)
    assert (house.said, house.loading) == (["fail 1 never_fits"], [])
    house.arrive("b")
    house.loaded(vram_mib=9000.0)
    house.finish(2)
    house.arrive(None)
    assert house.said[-1] == "start 3 on b"
