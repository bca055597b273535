"""What a GPU object says of a device that is out of order, withheld, or used by others."""

from paddock.api.gpu import GPUSpec, GPUStatus
from paddock.api.report import DeviceProcess, DeviceTrouble, DeviceUse, GgmlType, ListedDevice, NodeReport
from paddock.api.vocabulary import Reason
from paddock.core.fleet import device_of
from paddock.core.health import dress, ready_of, withheld
from paddock.core.inventory import MOST_NAMED, combine, in_words, merge, observe
from paddock.core.witness import Place

MIB, GIB = 1 << 20, 1 << 30
PCI = "0000:01:00.0"
THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"


def report(**more: object) -> NodeReport:
    card = ListedDevice(
        name="CUDA0",
        backend="CUDA",
        type=GgmlType.GPU,
        raw_index=0,
        pci_id=PCI,
        uuid="GPU-1",
        memory_total=16 * GIB,
        memory_free=12 * GIB,
    )
    return NodeReport(devices=[card], **more)  # type: ignore[arg-type]


def status(told: NodeReport, places: dict[str, Place] | None = None) -> GPUStatus:
    (one,) = observe("node1", told, THEN).values()
    return dress(one, told, places or {}, THEN)


def said(one: GPUStatus) -> tuple[str, str]:
    ready = ready_of(one)
    assert ready is not None
    return ready.status, ready.reason


def use(*processes: DeviceProcess, complete: bool = True) -> list[DeviceUse]:
    return [DeviceUse(pci_id=PCI, source="NVML", used=4 * GIB, complete=complete, processes=list(processes))]


STRANGER = DeviceProcess(pid=1, bytes=3 * GIB - 1, command="python")
SERVER = DeviceProcess(pid=2, bytes=GIB, pod="uid", container="c", command="llama-server")


def test_foreign_use_is_told_and_taken_off_what_models_may_have() -> None:
    one = status(report(uses=use(STRANGER, SERVER)), {"uid": Place(PCI, 2 * GIB)})
    assert one.memory.foreign == "3072Mi"
    assert [(who.command, who.memory) for who in one.foreign_use] == [("python", "3072Mi")]
    device = device_of("gpu", one.model_copy(update={"memory": one.memory.model_copy(update={"free": None})}))
    assert device.available(0) == 13 * GIB
    assert device.available(GIB) == 12 * GIB
    assert [holder.bytes for holder in device.holders(0)] == [3 * GIB]


def test_a_budget_below_what_strangers_leave_is_untouched_by_them() -> None:
    one = status(report(uses=use(STRANGER)))
    assert device_of("gpu", one, spec=GPUSpec(budget="8Gi")).available(0) == 8 * GIB
    assert device_of("gpu", one, spec=GPUSpec(budget="15Gi")).available(0) == 12 * GIB, "free memory is less"
    assert device_of("gpu", one, spec=GPUSpec(budget="Unlimited")).available(0) > 16 * GIB


def test_without_sight_of_all_processes_nothing_is_claimed() -> None:
    assert status(report()).memory.foreign is None
    assert status(report(uses=use(STRANGER, complete=False))).memory.foreign is None
    assert status(report(uses=use())).memory.foreign == "0Mi"


def test_each_trouble_has_its_reason() -> None:
    for code, reason in {
        "Lost": "DeviceLost",
        "Unreadable": "DeviceUnhealthy",
        "Xid": "DeviceUnhealthy",
        "EccError": "DeviceUnhealthy",
        "NeedsReset": "DeviceUnhealthy",
    }.items():
        trouble = DeviceTrouble(pci_id=PCI, code=code, message="so it is")  # type: ignore[arg-type]
        one = status(report(troubles=[trouble]))
        assert said(one) == ("False", reason)
        assert device_of("gpu", one).why_not == "so it is"
    elsewhere = DeviceTrouble(pci_id="0000:02:00.0", code="Lost", message="x")
    assert said(status(report(troubles=[elsewhere]))) == ("True", "Listed")


def test_a_device_is_withheld_by_its_owner_or_for_doubt_and_keeps_the_time() -> None:
    sound = status(report())
    assert withheld(sound, GPUSpec(), None, None, NOW) == sound
    kept = withheld(sound, GPUSpec(quarantine=True), None, sound, NOW)
    assert said(kept) == ("False", Reason.QUARANTINED)
    assert kept.conditions[0].last_transition_time == NOW
    later = withheld(merge(sound, kept), GPUSpec(quarantine=True), None, kept, "2026-01-01T00:09:00Z")
    assert later == kept, "nothing to write"
    doubted = withheld(sound, GPUSpec(), "three were elsewhere", kept, NOW)
    assert said(doubted) == ("False", Reason.REPEATED_MISMATCH)
    lost = status(report(troubles=[DeviceTrouble(pci_id=PCI, code="Lost", message="x")]))
    assert said(withheld(lost, GPUSpec(quarantine=True), None, None, NOW)) == ("False", "DeviceLost")


def test_reports_of_two_agents_are_joined() -> None:
    first, second = report(uses=use(STRANGER)), report(uses=use(), boot_id="b")
    assert combine({"a": first, "b": second}).uses == first.uses
    assert combine({"a": report(), "b": second}).uses == second.uses
    assert combine({"a": report(), "b": report()}).uses is None
    trouble = DeviceTrouble(pci_id=PCI, code="Lost", message="x")
    assert combine({"a": report(), "b": report(troubles=[trouble])}).troubles == [trouble]


def test_the_boot_is_told() -> None:
    assert status(report(boot_id="one")).boot_id == "one"


def test_who_uses_a_card_is_told_in_words_however_many() -> None:
    names = [f"team/{number}" for number in range(MOST_NAMED + 2)]
    assert in_words([]) is None
    assert in_words(names[:2]) == "team/0, team/1"
    assert in_words(names) == f"{', '.join(names[:MOST_NAMED])} and 2 more"
