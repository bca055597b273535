"""What a driver shows, against what a log says, and who else is on a card."""

from paddock.api.report import DeviceProcess, DeviceUse
from paddock.api.vocabulary import Reason
from paddock.core.evidence import Evidence
from paddock.core.witness import CONTEXT, Foreign, Place, Subject, combine, foreign, limit, look

MIB, GIB = 1 << 20, 1 << 30
OWN, OTHER = "0000:02:00.0", "0000:01:00.0"
NAMES = {OWN: "NVIDIA RTX 4080", OTHER: "NVIDIA GTX 1060"}
SUBJECT = Subject("uid", "c0ffee", OWN, need=6 * GIB, weights=4 * GIB)
LOG = Evidence(True, Reason.BUFFERS_ON_DEVICE, "NVIDIA RTX 4080 (0000:02:00.0) holds 5 GiB")


def process(
    size: int | None, pid: int = 7, pod: str | None = "uid", container: str | None = "c0ffee", command: str = "x"
) -> DeviceProcess:
    return DeviceProcess(pid=pid, bytes=size, pod=pod, container=container, command=command)


def use(card: str, *processes: DeviceProcess, used: int | None = None, complete: bool = True) -> DeviceUse:
    total = sum(one.bytes or 0 for one in processes) if used is None else used
    return DeviceUse(pci_id=card, source="NVML", complete=complete, used=total, processes=list(processes))


def reason(*uses: DeviceUse, subject: Subject = SUBJECT) -> tuple[Reason | None, bool]:
    sight = look(uses, subject, NAMES)
    return (sight.evidence.reason if sight.evidence else None), sight.hasty


def test_on_its_own_card_alone() -> None:
    sight = look([use(OTHER), use(OWN, process(5 * GIB))], SUBJECT, NAMES)
    assert sight.evidence == Evidence(True, Reason.PROCESS_ON_DEVICE, "the driver shows 5 GiB for its process there")
    both = combine(LOG, sight.evidence, SUBJECT)
    assert (both.verified, both.reason) == (True, Reason.PROCESS_ON_DEVICE)
    assert both.message == f"{LOG.message}; the driver shows 5 GiB for its process there"


def test_on_another_card_the_message_names_both() -> None:
    sight = look([use(OTHER, process(5 * GIB)), use(OWN)], SUBJECT, NAMES)
    assert sight.evidence is not None
    assert (sight.evidence.reason, sight.hasty) == (Reason.WRONG_DEVICE, False)
    assert sight.evidence.message == (
        "the driver shows its process with 5 GiB on NVIDIA GTX 1060 (0000:01:00.0); "
        "the model belongs on NVIDIA RTX 4080 (0000:02:00.0)"
    )
    told = combine(LOG, sight.evidence, SUBJECT)
    assert not told.verified
    assert "though its log says that NVIDIA RTX 4080" in told.message


def test_a_bare_context_on_a_second_card_is_let_pass() -> None:
    assert reason(use(OWN, process(5 * GIB)), use(OTHER, process(CONTEXT))) == (Reason.PROCESS_ON_DEVICE, False)
    assert reason(use(OWN, process(5 * GIB)), use(OTHER, process(CONTEXT + 1))) == (Reason.SECOND_DEVICE, False)


def test_more_than_planned() -> None:
    assert limit(GIB) == GIB + 256 * MIB
    assert limit(100 * GIB) == 105 * GIB
    assert reason(use(OWN, process(limit(6 * GIB)))) == (Reason.PROCESS_ON_DEVICE, False)
    assert reason(use(OWN, process(limit(6 * GIB) + 1))) == (Reason.OVER_PLAN, False)


def test_too_little_may_be_told_late() -> None:
    assert reason(use(OWN, process(int(3.5 * GIB)))) == (Reason.PROCESS_ON_DEVICE, False)
    assert reason(use(OWN, process(3 * GIB))) == (Reason.CPU_FALLBACK, True)


def test_nowhere_refutes_only_where_no_memory_could_be_the_models() -> None:
    stranger = process(2 * GIB, 9, None, None)
    assert reason(use(OWN, stranger, used=3 * GIB)) == (Reason.CPU_FALLBACK, True)
    assert reason(use(OWN, stranger, used=7 * GIB)) == (None, True), "the driver does not list all"
    nobody = process(6 * GIB, 9, None, None, "")
    assert reason(use(OWN, nobody, used=7 * GIB)) == (None, True), "nobody knows whose that is"
    assert reason(use(OWN, stranger, used=3 * GIB, complete=False)) == (None, True)
    assert reason(use(OTHER)) == (None, False), "its own card is not watched"


def test_a_former_container_of_the_same_pod_is_not_taken_for_it() -> None:
    assert reason(use(OWN, process(5 * GIB, container="dead"), used=6 * GIB)) == (Reason.CPU_FALLBACK, True)
    assert reason(use(OWN, process(5 * GIB, container=None))) == (Reason.PROCESS_ON_DEVICE, False)


def test_on_the_cpu_no_card_may_hold_more_than_a_context() -> None:
    subject = Subject("uid", "c0ffee", None)
    assert reason(use(OWN, process(CONTEXT)), subject=subject) == (None, False)
    assert reason(use(OWN, process(GIB)), subject=subject) == (Reason.WRONG_DEVICE, False)


def test_a_driver_that_gives_no_numbers_still_names_the_card() -> None:
    assert reason(use(OWN, process(None))) == (Reason.PROCESS_ON_DEVICE, False)
    assert reason(use(OTHER, process(None)), use(OWN)) == (Reason.WRONG_DEVICE, False)


def test_each_witness_can_refute_the_other() -> None:
    shown = Evidence(True, Reason.PROCESS_ON_DEVICE, "the driver shows 5 GiB for its process there")
    wrong = Evidence(False, Reason.CPU_FALLBACK, "the key-value cache is in host memory")
    assert combine(wrong, shown, SUBJECT).reason is Reason.CPU_FALLBACK
    assert not combine(wrong, shown, SUBJECT).verified
    assert combine(wrong, None, SUBJECT) == wrong
    silent = Evidence(False, Reason.NO_EVIDENCE, "the log does not say")
    assert combine(silent, shown, SUBJECT).verified
    tiny = Subject("uid", "c0ffee", OWN, need=GIB, weights=MIB)
    assert not combine(silent, shown, tiny).verified, "so little could be anything"


def test_foreign_use() -> None:
    places = {"uid": Place(OWN, 6 * GIB), "astray": Place(OTHER, GIB)}
    seen = use(
        OWN,
        process(int(5.5 * GIB)),
        process(GIB, 8, "astray", command="llama-server"),
        process(2 * GIB, 9, None, None, "python"),
        process(GIB, 10, "gone", command="python"),
        process(None, 11, None, None, ""),
    )
    assert foreign(seen, places) == Foreign(4 * GIB, (("python", 3 * GIB), ("llama-server", GIB), ("unknown", 0)))
    assert foreign(use(OWN, process(5 * GIB)), places) == Foreign(0)
    over = foreign(use(OWN, process(4 * GIB), process(3 * GIB, 8)), places)
    assert over.bytes == GIB, "what a server has beyond its reservation is not for others"
