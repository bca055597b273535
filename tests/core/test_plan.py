"""Which pods are made and removed, case by case and in simulated lives."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.vocabulary import Reason
from paddock.core.deployment import Deployment, revision
from paddock.core.plan import Departure, Plan, Wanted, plan, wanted_replicas
from paddock.core.pod import pod_name
from paddock.core.replica import Replica
from support.builders import deployment, older, replica


def planned(of: Deployment, *replicas: Replica, satisfied: bool = True) -> Plan:
    return plan(of, replicas, lambda _: satisfied)


def numbers(found: Plan) -> list[int]:
    return [one.number for one in found.wanted]


def removed(found: Plan) -> dict[str, str]:
    return {one.replica.name: one.why for one in found.removals}


TWO = deployment(replicas=2)


@pytest.mark.parametrize(
    ("spec", "count"),
    [({}, 1), ({"replicas": 3}, 3), ({"replicas": 0}, 0), ({"replicas": 3, "suspend": True}, 0), ({"replicas": -1}, 0)],
)
def test_how_many_are_wanted(spec: dict[str, Any], count: int) -> None:
    assert wanted_replicas(deployment(**spec)) == count


def test_from_nothing_all_are_wanted() -> None:
    assert planned(TWO).wanted == (Wanted(0), Wanted(1))


def test_what_is_as_it_should_be_is_left_alone() -> None:
    found = planned(TWO, replica(TWO, 1), replica(TWO, 0))
    assert (found.wanted, found.removals) == ((), ())
    assert [one.number for one in found.current] == [0, 1]


def test_scaling_up_fills_the_numbers_that_are_free() -> None:
    three = deployment(replicas=3)
    assert numbers(planned(three, replica(three, 1))) == [0, 2]


def test_scaling_down_removes_the_highest_numbers() -> None:
    one = deployment(replicas=1)
    found = planned(one, *(replica(one, number) for number in range(3)))
    assert removed(found) == {replica(one, 1).name: "not wanted any more", replica(one, 2).name: "not wanted any more"}
    assert numbers(found) == []


def test_a_pod_whose_record_was_spoiled_is_replaced_and_its_name_is_not_free_before_it_is_gone() -> None:
    one = deployment(replicas=1)
    spoiled = replica(one, 0, record=None, altered="it was removed")
    found = planned(one, spoiled)
    assert removed(found) == {spoiled.name: "its annotation paddock.dev/placement was changed by hand: it was removed"}
    assert (found.wanted, found.current) == ((), ())
    assert planned(one, replace(spoiled, deleting=True)).wanted == ()
    mended = replica(one, 0, altered="need was 2 and became 1")
    assert planned(one, mended).current == (mended,)


@pytest.mark.parametrize("spec", [{"suspend": True}, {"replicas": 0}])
def test_suspending_removes_all(spec: dict[str, Any]) -> None:
    of = deployment(**spec)
    found = planned(of, replica(of, 0), older(replica(of, 1)))
    assert len(found.removals) == 2
    assert (found.wanted, found.current, found.outdated) == ((), (), ())


def test_a_spec_that_cannot_be_read_harms_no_server() -> None:
    broken = deployment(replicas=-1)
    found = planned(broken, replica(TWO, 0), replica(TWO, 1))
    assert (found.wanted, found.removals) == ((), ())
    assert len(found.current) == 2


def test_a_deployment_that_is_being_deleted_is_left_to_kubernetes() -> None:
    going = replace(TWO, deleting=True)
    found = planned(going, replica(TWO, 0))
    assert (found.wanted, found.removals) == ((), ())


def test_a_new_spec_replaces_one_at_a_time_and_keeps_the_old_until_the_new_serves() -> None:
    old = [older(replica(TWO, number)) for number in (0, 1)]
    first = planned(TWO, *old)
    assert first.wanted == (Wanted(0, old[0]),)
    assert first.removals == ()
    starting = replica(TWO, 0, ready=False)
    second = planned(TWO, *old, starting)
    assert (second.wanted, second.removals) == ((), ())
    third = planned(TWO, *old, replica(TWO, 0))
    assert third.wanted == (Wanted(1, old[1]),)
    assert removed(third) == {"gemma-older-0": "its successor is Ready"}


def test_a_successor_whose_evidence_is_stale_does_not_end_the_old_one() -> None:
    old, restarted = older(replica(TWO, 0)), replica(TWO, 0, container_id="containerd://two")
    assert planned(deployment(), old, restarted).removals == ()


def test_release_first_waits_until_the_released_one_serves_again() -> None:
    leaving, other = older(replica(TWO, 0), deleting=True), older(replica(TWO, 1))
    found = planned(TWO, leaving, other)
    assert found.wanted == (Wanted(0),)
    assert found.leaving == (leaving,)
    found = planned(TWO, other)
    assert found.wanted == (Wanted(0), Wanted(1, other))
    assert [one.replaces_a_server for one in found.wanted] == [False, True]


def test_old_pods_that_do_not_serve_are_replaced_at_once() -> None:
    old = [older(replica(TWO, number, ready=False)) for number in (0, 1)]
    assert numbers(planned(TWO, *old)) == [0, 1]


def test_a_rollout_goes_on_although_one_more_replica_has_no_room() -> None:
    three = deployment(replicas=3)
    old = [older(replica(three, number)) for number in (0, 1)]
    found = planned(three, *old)
    assert found.wanted == (Wanted(2), Wanted(0, old[0]))


def test_a_failed_pod_goes_and_its_number_is_wanted_when_its_name_is_free() -> None:
    failed = replica(TWO, 0, ready=False, phase="Failed", waiting=Reason.ADMISSION_FAILED, waiting_message="no device")
    found = planned(TWO, failed, replica(TWO, 1))
    assert removed(found) == {failed.name: "no device"}
    assert numbers(found) == []
    assert numbers(planned(TWO, replica(TWO, 1))) == [0]
    assert numbers(planned(TWO, older(failed), replica(TWO, 1))) == [0]


def test_a_pod_that_leaves_holds_its_name() -> None:
    leaving = replica(TWO, 0, deleting=True)
    assert numbers(planned(TWO, leaving, replica(TWO, 1))) == []


def test_a_failed_pod_holds_a_rollout() -> None:
    failed = older(replica(TWO, 0, ready=False, phase="Failed"))
    assert numbers(planned(TWO, failed, older(replica(TWO, 1)))) == [0]


@pytest.mark.parametrize("satisfied", [True, False])
def test_another_placement_moves_only_what_it_forbids(satisfied: bool) -> None:
    moved = deployment(placement={"devices": [{"uuid": "GPU-1060"}]})
    before = replica(deployment())
    found = planned(moved, before, satisfied=satisfied)
    assert found.current == ((before,) if satisfied else ())
    assert found.wanted == (() if satisfied else (Wanted(0, before),))
    assert pod_name(moved, revision(moved), 0) != before.name


def test_satisfaction_is_asked_only_after_a_change_of_placement() -> None:
    def never(_: Replica) -> bool:
        raise AssertionError("asked without need")

    found = plan(TWO, [replica(TWO, 0), replica(TWO, 1)], never)
    assert len(found.current) == 2


def test_pods_of_a_deployment_of_the_same_name_that_is_gone_are_not_touched_and_hold_their_names() -> None:
    ghost = replica(TWO, 0, owner_uid="gone", deleting=True)
    found = planned(TWO, ghost, replica(TWO, 1, owner_uid="gone"))
    assert (found.removals, found.current, found.leaving) == ((), (), ())
    assert numbers(found) == []
    assert numbers(planned(TWO, ghost)) == [1]


def test_pods_that_a_deleted_deployment_left_without_an_owner_make_way() -> None:
    left, going = replica(TWO, 0, owner_uid=""), replica(TWO, 1, owner_uid="", deleting=True)
    found = planned(TWO, left, going)
    assert [one.replica for one in found.removals] == [left]
    assert numbers(found) == [], "their names are not free yet"


def test_of_two_pods_with_one_number_the_one_that_serves_stays() -> None:
    one = deployment()
    serving, double = replica(one, 0, name="gemma-z-0"), replica(one, 0, name="gemma-a-0", ready=False)
    found = planned(one, double, serving)
    assert found.current == (serving,)
    assert found.outdated == ()
    assert removed(found) == {"gemma-a-0": "another pod has its number"}


def test_a_replica_on_a_node_that_does_not_answer_is_made_anew_under_another_name() -> None:
    stuck = replica(TWO, 0, ready=False, deleting=True)
    pods = [stuck, replica(TWO, 1)]
    waiting = plan(TWO, pods, lambda _: True)
    assert waiting.wanted == ()
    found = plan(TWO, pods, lambda _: True, lambda one: one is stuck)
    assert found.wanted == (Wanted(0, None, 1),)
    name = pod_name(TWO, revision(TWO), 0, 1)
    assert name not in {one.name for one in pods}
    successor = replica(TWO, 0, name=name)
    settled = plan(TWO, [*pods, successor], lambda _: True, lambda one: one is stuck)
    assert (settled.wanted, settled.removals) == ((), ())
    assert set(settled.current) == {successor, pods[1]}


# Asked to leave for others


def leaving(moves: bool, *numbers: int) -> Callable[[Replica], Departure | None]:
    return lambda one: Departure("others need the room", moves) if one.number in numbers else None


def test_an_evicted_pod_is_removed_and_its_replica_waits_until_it_is_gone() -> None:
    pods = [replica(TWO, 0), replica(TWO, 1)]
    found = plan(TWO, pods, lambda _: True, departs=leaving(False, 1))
    assert removed(found) == {pods[1].name: "others need the room"}
    assert (found.current, found.wanted) == ((pods[0],), ())
    found = plan(TWO, pods[:1], lambda _: True, departs=leaving(False, 1))
    assert numbers(found) == [1]


def test_a_moving_pod_serves_until_its_successor_of_another_name_does() -> None:
    pods = [replica(TWO, 0), replica(TWO, 1)]
    found = plan(TWO, pods, lambda _: True, departs=lambda one: leaving(True, 1)(one) if one is pods[1] else None)
    assert (found.current, found.outdated, found.removals) == ((pods[0],), (pods[1],), ())
    (wanted,) = found.wanted
    assert wanted == Wanted(1, replacing=pods[1], attempt=1)
    successor = replica(TWO, 1, name=pod_name(TWO, revision(TWO), 1, 1), uid="successor")

    def departs(one: Replica) -> Departure | None:
        return leaving(True, 1)(one) if one.uid == pods[1].uid else None

    loading = replace(successor, ready=False)
    assert plan(TWO, [*pods, loading], lambda _: True, departs=departs).removals == ()
    both = plan(TWO, [*pods, successor], lambda _: True, departs=departs)
    assert removed(both) == {pods[1].name: "its successor is Ready"}
    given_up = plan(TWO, [*pods, loading], lambda _: True)
    assert removed(given_up) == {loading.name: "another pod has its number"}
    settled = plan(TWO, [pods[0], successor], lambda _: True)
    assert (settled.wanted, settled.removals) == ((), ())
    again = plan(TWO, [pods[0], successor], lambda _: True, departs=leaving(True, 1))
    assert again.wanted == (Wanted(1, replacing=successor, attempt=0),)


# Simulated lives


@dataclass
class World:
    """A cluster with room for all replicas once, or for one more."""

    of: Deployment
    surge: bool
    pods: dict[str, Replica] = field(default_factory=dict)

    def look(self) -> Plan:
        found = planned(self.of, *self.pods.values())
        self.check(found)
        return found

    def check(self, found: Plan) -> None:
        assert len({one.number for one in found.wanted}) == len(found.wanted)
        count = wanted_replicas(self.of)
        assert all(one.number < count for one in found.wanted)
        names = [pod_name(self.of, revision(self.of), one.number) for one in found.wanted]
        assert not set(names) & set(self.pods), "a name that is still taken"
        current = {one.name for one in found.current}
        going = {one.number for one in found.outdated if one.name in removed(found)} - {
            one.number for one in found.current if one.serving
        }
        kept = {one.number for one in (*found.current, *found.outdated) if one.serving} - going
        for one in found.removals:
            assert one.replica.name not in current
            if one.replica.serving and one.replica.number < count:
                assert one.replica.number in kept, "a server was removed before its successor serves"
        placed = [one.name for one in (*found.current, *found.outdated, *found.leaving)]
        assert len(set(placed)) == len(placed)

    def act(self, found: Plan) -> None:
        for removal in found.removals:
            self.pods[removal.replica.name] = replace(removal.replica, deleting=True, ready=False)
        made = False
        for wanted in found.wanted:
            if wanted.replaces_a_server and made:
                break
            if wanted.replacing is not None and not self.surge:
                self.pods[wanted.replacing.name] = replace(wanted.replacing, deleting=True, ready=False)
                continue
            new = replica(self.of, wanted.number, ready=False)
            self.pods[new.name] = new
            made = True

    def settle(self) -> None:
        """Let pods that leave be gone, and pods that start be Ready."""
        self.pods = {name: one for name, one in self.pods.items() if not one.deleting and not one.failed}
        for name, one in self.pods.items():
            if not one.ready and one.revision == revision(self.of):
                self.pods[name] = replica(self.of, one.number)

    def serving(self) -> set[int]:
        return {one.number for one in self.pods.values() if one.serving and not one.deleting}

    def run(self, least: int = 0) -> None:
        for _ in range(8 * (wanted_replicas(self.of) + len(self.pods)) + 8):
            found = self.look()
            self.act(found)
            assert len(self.serving()) >= least
            self.settle()
            assert len(self.serving()) >= least
        found = self.look()
        assert (found.wanted, found.removals, found.outdated, found.leaving) == ((), (), (), ())
        assert self.serving() == set(range(wanted_replicas(self.of)))
        assert len(self.pods) == wanted_replicas(self.of)


@given(st.integers(1, 4), st.booleans())
def test_a_rollout_ends_and_at_most_one_replica_is_missing_at_a_time(count: int, surge: bool) -> None:
    of = deployment(replicas=count)
    old = [older(replica(of, number)) for number in range(count)]
    World(of, surge, {one.name: one for one in old}).run(least=count if surge else count - 1)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    of = deployment(replicas=draw(st.integers(0, 3)), suspend=draw(st.booleans()))
    pods: dict[str, Replica] = {}
    for _ in range(draw(st.integers(0, 6))):
        one = replica(of, draw(st.integers(0, 4)), ready=draw(st.booleans()))
        one = replace(
            one,
            deleting=draw(st.sampled_from([False, False, True])),
            phase=draw(st.sampled_from(["Running", "Running", "Failed"])),
            placement_spec=draw(st.sampled_from([one.placement_spec, "another"])),
        )
        if draw(st.booleans()):
            one = older(one, name=f"gemma-{draw(st.sampled_from('ab'))}-{one.number}")
        if one.failed or one.deleting:
            one = replace(one, ready=False)
        pods[one.name] = one
    return World(of, draw(st.booleans()), pods)


@given(worlds())
def test_from_any_state_the_same_steps_lead_to_what_is_wanted(world: World) -> None:
    world.run()


@given(worlds(), st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_of_pods(world: World, random: object) -> None:
    pods = list(world.pods.values())
    one = planned(world.of, *pods)
    random.shuffle(pods)  # type: ignore[attr-defined]
    other = planned(world.of, *pods)
    assert (one.wanted, one.current, one.outdated) == (other.wanted, other.current, other.outdated)
    assert set(one.removals) == set(other.removals)


def test_a_second_look_before_anything_changed_says_the_same() -> None:
    old = [older(replica(TWO, number)) for number in (0, 1)]
    assert planned(TWO, *old) == planned(TWO, *old)
