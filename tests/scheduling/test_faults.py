"""What a failing backend does to items, loads and unloads."""

from __future__ import annotations

from hearth.config.settings import ModelSettings
from hearth.scheduling import inputs
from hearth.scheduling.inputs import Fault
from hearth.types import Band
from tests.support.shell import Shell, house_settings


def test_a_fault_before_anything_was_forwarded_resends_once_at_the_items_own_place():
    house = Shell(resident=("a",))
    first = house.arrive("a")
    house.arrive("a")
    assert house.fail(first, Fault.BACKEND_GONE) == [f"start {first} on a"]
    assert house.running[first] == 2
    assert house.state.entries[first].band is Band.EXTERNAL


def test_a_second_fault_gives_the_item_up():
    house = Shell(resident=("a",))
    first = house.arrive("a")
    second = house.arrive("a")
    house.fail(first, Fault.BACKEND_GONE)
    assert house.fail(first, Fault.BACKEND_GONE) == [f"fail {first} attempts_exhausted", f"start {second} on a"]


def test_a_fault_after_bytes_were_forwarded_gives_the_item_up():
    house = Shell(resident=("a",))
    first = house.arrive("a")
    house.first_byte(first, forwarded=True)
    assert house.fail(first, Fault.BACKEND_GONE) == [f"fail {first} attempts_exhausted"]


def test_attempts_that_end_with_the_backend_do_not_count():
    house = Shell(resident=("a",))
    first = house.arrive("a")
    again = [f"start {first} on a"]
    house.tell(inputs.BackendDown())
    house.fail(first, Fault.BACKEND_GONE)
    assert house.tell(inputs.BackendUp()) == again
    assert house.fail(first, Fault.BACKEND_GONE) == again
    house.tell(inputs.BackendDown())
    assert house.fail(first, Fault.BACKEND_GONE) == []
    assert house.tell(inputs.BackendUp()) == again


def test_a_fatal_fault_is_not_tried_again():
    house = Shell(resident=("a",))
    assert house.fail(house.arrive("a"), Fault.FATAL) == ["fail 1 attempts_exhausted"]


def test_the_fault_of_a_cancelled_item_is_nobodys_business():
    house = Shell(resident=("a",))
    first = house.arrive("a")
    house.cancel(first)
    assert house.fail(first, Fault.BACKEND_GONE) == []
    assert not house.state.entries


def test_a_model_that_sends_no_byte_is_unloaded_and_loaded_again_for_its_waiters():
    house = Shell(resident=("a",))
    first = house.arrive("a")
    assert house.fail(first, Fault.FIRST_BYTE_TIMEOUT) == ["unload a"]
    assert house.unloaded() == ["load a"]
    assert house.loaded() == [f"start {first} on a"]


def test_a_suspect_model_is_unloaded_only_when_nothing_runs_on_it_any_more():
    house = Shell(house_settings(parallel=2), resident=("a",))
    first, second = house.arrive("a"), house.arrive("a")
    assert house.fail(first, Fault.FIRST_BYTE_TIMEOUT) == []
    assert house.finish(second) == ["unload a"]


def test_a_suspect_model_takes_no_more_work():
    house = Shell(house_settings(parallel=3), resident=("a",))
    first = house.arrive("a")
    house.arrive("a")
    house.fail(first, Fault.FIRST_BYTE_TIMEOUT)
    house.arrive("a")
    assert house.said == []
    house.arrive(None)
    assert house.said == []


def test_a_load_that_fails_is_tried_once_more_after_two_seconds():
    house = Shell()
    house.arrive("b")
    assert house.load_failed() == []
    house.at(1.99)
    assert not house.loading
    house.at(2.0)
    assert house.log[-1] == (2.0, "load b")


def test_a_load_that_fails_twice_gives_its_waiters_up_and_serves_the_others():
    house = Shell()
    house.arrive("b")
    house.arrive("b")
    house.load_failed()
    house.arrive("c")
    assert house.said == ["load c"]
    house.cancel(3)
    house.load_failed(permanent=True)
    house.at(2.0)
    assert house.load_failed() == ["fail 1 load_failed", "fail 2 load_failed"]
    house.arrive("b")
    assert house.load_failed() == [], "those who come later have two tries of their own"


def test_a_load_that_can_never_succeed_is_not_tried_again():
    house = Shell()
    house.arrive("b")
    house.arrive("c")
    assert house.load_failed(permanent=True) == ["fail 1 load_failed", "load c"]


def test_a_failed_load_is_forgotten_when_the_model_came_after_all():
    house = Shell()
    house.arrive("b")
    house.load_failed()
    house.at(2.0).loaded()
    house.finish(1)
    house.arrive("c")
    assert house.unload_failed() == []


def test_a_failed_unload_is_forgotten_when_the_model_went_after_all():
    house = Shell(resident=("a",))
    house.arrive("b")
    house.unload_failed()
    house.at(5.0).unloaded()
    house.loaded()
    house.finish(1)
    house.arrive("a")
    house.unloaded()
    assert house.load_failed() == []


def test_a_backend_that_comes_back_begins_with_a_clean_record():
    house = Shell()
    house.arrive("b")
    house.load_failed()
    house.tell(inputs.BackendDown())
    assert house.at(1.0).tell(inputs.BackendUp()) == ["load b"]
    assert house.load_failed() == []


def test_a_load_that_failed_leaves_no_reservation():
    house = Shell()
    house.arrive("b")
    house.load_failed(permanent=True)
    assert not house.state.residency.residents
    assert house.state.residency.swap is None


def test_a_home_model_that_does_not_load_gives_up_those_who_would_have_taken_any():
    house = Shell(house_settings(home="h"))
    house.arrive(None)
    assert house.load_failed(permanent=True) == ["fail 1 load_failed"]


def test_a_home_model_that_does_not_load_gives_up_nobody_who_has_another_model_to_wait_for():
    house = Shell(house_settings(home="h", vram_gb=0), resident=("a",))
    house.arrive("a")
    house.arrive("h")
    anywhere = house.arrive(None)
    assert house.load_failed(permanent=True) == ["fail 2 load_failed"]
    assert house.finish(1) == [f"start {anywhere} on a"]


def test_a_model_that_does_not_go_is_told_again_after_five_seconds():
    house = Shell(resident=("a",))
    house.arrive("b")
    assert house.unload_failed() == []
    house.at(4.9)
    assert not house.unloading
    house.at(5.0)
    assert house.log[-1] == (5.0, "unload a")
    assert house.unloaded() == ["load b"]


def test_a_model_that_did_not_go_is_not_trusted_with_work():
    house = Shell(resident=("a",))
    house.arrive("b")
    house.unload_failed()
    house.arrive("a")
    assert house.said == []


def test_a_model_that_does_not_go_twice_gives_up_those_who_need_its_place():
    house = Shell(resident=("a",))
    house.arrive("b")
    house.unload_failed()
    house.at(5.0)
    assert house.unload_failed() == ["fail 1 load_failed"]


def test_a_model_that_does_not_go_gives_up_nobody_who_can_run_beside_it():
    house = Shell(house_settings(vram_gb=24, models={name: ModelSettings(vram_gb=12) for name in "abc"}), resident=("a", "b"))
    house.arrive("b")
    anywhere = house.arrive(None)
    assert house.said == [f"start {anywhere} on a"]
    house.fail(anywhere, Fault.FIRST_BYTE_TIMEOUT)
    house.unload_failed()
    house.at(5.0)
    assert house.unload_failed() == []
    assert house.finish(1) == [f"start {anywhere} on b"]


def test_a_model_that_somebody_else_loaded_is_used():
    house = Shell()
    house.tell(inputs.Loaded(model="x", vram_mib=1000.0))
    house.arrive("x")
    assert house.said == ["start 1 on x"]


def test_nothing_starts_while_the_backend_is_down_and_everything_goes_on_when_it_is_back():
    house = Shell(resident=("a",))
    house.tell(inputs.BackendDown())
    house.arrive("a")
    assert house.said == []
    assert house.at(5.0).tell(inputs.BackendUp()) == ["start 1 on a"]


def test_items_wait_for_a_backend_that_is_down_as_long_as_they_may():
    house = Shell(house_settings(wait_when_down_s=10.0), resident=("a",))
    house.tell(inputs.BackendDown())
    house.at(4.0).arrive("a")
    house.at(13.9)
    assert not house.ended
    house.at(14.0)
    assert house.ended == {1: "fail 1 backend_down"}


def test_an_item_that_the_backend_dropped_when_it_went_down_waits_no_longer_than_those_in_the_queue():
    house = Shell(house_settings(wait_when_down_s=10.0), resident=("a",))
    dropped = house.arrive("a")
    house.at(3.0).tell(inputs.BackendDown())
    house.at(5.0).arrive("a")
    house.at(6.0).fail(dropped, Fault.BACKEND_GONE)
    house.at(12.9)
    assert not house.ended
    house.at(13.0)
    assert house.ended == {dropped: f"fail {dropped} backend_down"}


def test_a_backend_that_is_reported_down_twice_is_down_since_the_first_time():
    house = Shell(house_settings(wait_when_down_s=10.0), resident=("a",))
    house.tell(inputs.BackendDown())
    house.arrive("a")
    house.at(8.0).tell(inputs.BackendDown())
    house.at(10.0)
    assert house.ended == {1: "fail 1 backend_down"}


def test_settings_that_shorten_the_wait_for_a_backend_apply_to_those_who_wait_already():
    house = Shell(house_settings(wait_when_down_s=100.0), resident=("a",))
    house.tell(inputs.BackendDown())
    house.arrive("a")
    house.tell(inputs.PolicyChanged(settings=house_settings(wait_when_down_s=3.0)))
    house.at(3.0)
    assert house.ended == {1: "fail 1 backend_down"}


def test_an_item_for_any_model_is_refused_where_none_is_left_and_there_is_no_home():
    house = Shell(resident=("a",))
    house.tell(inputs.BackendDown())
    house.arrive(None)
    house.tell(inputs.Unloaded(model="a"))
    assert house.tell(inputs.BackendUp()) == ["fail 1 no_model"]


def test_an_item_for_any_model_waits_for_the_model_that_another_one_brings():
    house = Shell(resident=("a",))
    house.tell(inputs.BackendDown())
    house.arrive(None)
    house.arrive("b")
    house.tell(inputs.Unloaded(model="a"))
    assert house.tell(inputs.BackendUp()) == ["load b"]
    assert house.loaded() == ["start 2 on b"]
    assert house.finish(2) == ["start 1 on b"]
