"""Lines of the NVIDIA driver in the kernel log: every form, every code, and the many that must not count."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_lifecycle.facts import KernelRecord, XidLine
from gpu_lifecycle.rules.claims import pci_key
from gpu_lifecycle.rules.kernel_log import records
from gpu_lifecycle.rules.xid import ClaimedGpu, KernelSays, Listener, few_of_each, judge, xid_line
from gpu_lifecycle.rules.xid_codes import CODES, RECOVERY, Act

OURS, OTHER = (0, 0x18, 0), (0, 0x2A, 0)
GPU = ClaimedGpu("GPU-a", "3", OURS)
AT = "NVRM: Xid (PCI:0000:18:00)"
LISTENER = Listener((GPU,), frozenset((4242,)))
IN_CONTAINER = Listener((GPU,), None)


def said(text: str, sequence: int = 7) -> XidLine | None:
    return xid_line(KernelRecord(sequence, 1.0, 4, text))


def line(text: str, sequence: int = 7) -> XidLine:
    found = said(text, sequence)
    assert found is not None, text
    return found


def act(text: str, listener: Listener = LISTENER, recovery: int | None = None) -> Act | None:
    says = judge(line(text), listener, {} if recovery is None else dict.fromkeys((gpu.uuid for gpu in listener.gpus), recovery))
    return says.act if says else None


def xid(code: int, rest: str = ", pid=4242, name=python3, Ch 00000008", at: str = "PCI:0000:18:00") -> str:
    return f"NVRM: Xid ({at}): {code}{rest}"


# The forms of a record


def test_records_of_the_device() -> None:
    data = (
        b"6,339,5140900,-;NET: Registered protocol family 10\n"
        b" SUBSYSTEM=net\n DEVICE=n2\n"
        b"4,340,5690716,c,caller=T123;NVRM: \\x5cname\\x0anext \xc3\xa9\\xff\n"
        b"12,341,5690717,-;NVRM: Xid (PCI:0000:18:00): 79, user space wrote this\n"
        b"torn line\n\n4,342,6000000,+;last"
    )
    assert records(data) == (
        KernelRecord(339, 5.1409, 6, "NET: Registered protocol family 10"),
        KernelRecord(340, 5.690716, 4, "NVRM: \\name\nnext é\udcff"),
        KernelRecord(342, 6.0, 4, "last"),
    )


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"4,1,2,-;x\n", b" K=v\n", b"4,", b";", b"\\x", b"\\x4"])))
def test_no_bytes_break_a_record(parts: list[bytes]) -> None:
    for record in records(b"".join(parts)):
        assert 0 <= record.level <= 7
        xid_line(record)


# The forms of a line


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (f"{AT}: 31, pid=4242, name=python3, Ch 00000008, intr 0", {"code": 31, "pid": 4242, "name": "python3"}),
        ("NVRM: Xid (PCI:0000:18:00.0): 31, Ch 8", {"code": 31, "pid": None}),
        ("NVRM: Xid (PCI:00000000:18:00): 31", {"code": 31}),
        ("NVRM: Xid (0000:18:00): 13, 0001 00000000 0000a040", {"code": 13, "pid": None}),
        ("NVRM: Xid (PCI:0000:18:00 GPU-I:01): 13, pid=7, name=x, m", {"instance": 1, "compute_instance": None, "pid": 7}),
        ("NVRM: Xid (PCI:0000:18:00 GPU-I:11 GPU-CI:03): 94, m", {"code": 94, "instance": 11, "compute_instance": 3}),
        (f"{AT}: 79, pid='<unknown>', name=<unknown>, gone", {"code": 79, "pid": None, "name": "<unknown>"}),
        (f"{AT}: 79, pid=<unknown>, name=<unknown>, gone", {"code": 79, "pid": None}),
        (f"{AT}: 45, pid=7, name=a b, Ch 1 caused by previous Xid 149", {"code": 45, "cause": 149, "name": "a b"}),
        (
            f"{AT}: 154, pid=7, name=x, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            {"code": 154, "recovery": 1, "pid": 7},
        ),
        (f"{AT}: 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", {"recovery": 0}),
        (f"{AT}: 31, GPU recovery action changed from 0x0 (None) to 0x1 (x)", {"code": 31, "recovery": None}),
        ("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.", {"code": None}),
        ("NVRM: GPU at PCI:0000:18:00: GPU has fallen off the bus.", {"code": None}),
        ("NVRM: GPU at 0000:18:00.0 has fallen off the bus.", {"code": None}),
        (
            "NVRM: The NVIDIA GPU 0000:18:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this\nNVRM: has fallen off the bus",
            {"code": None},
        ),
        ("nvidia-nvswitch2: SXid (PCI:0000:18:00.0): 12028, Non-fatal, Link 32 egress", {"code": 12028, "switch": True}),
    ],
)  # fmt: skip
def test_forms(text: str, fields: dict[str, object]) -> None:
    found = line(text)
    assert found.pci == OURS
    assert {key: getattr(found, key) for key in fields} == fields
    assert "\n" not in found.text


def test_domains_and_spellings() -> None:
    assert line(xid(31, at="PCI:0008:01:00")).pci == (8, 1, 0)
    assert line(xid(31, at="PCI:10000:E1:1F")).pci == (0x10000, 0xE1, 0x1F) == pci_key("00010000:E1:1F.0")


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: GPU at PCI:0000:18:00: GPU-00000000-0000-4000-8000-000000000000",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  595.71.05",
        "NVRM: Xid (PCI:0000:18:00): none",
        "NVRM: Xid (PCI:0000:18:00): 79.5",
        "NVRM: Xid (PCI:0000:18:0): 79, one digit is missing",
        "NVRM: Xid (PCI:0000:18:00: 79, a bracket is missing",
        "NVRM: Xid (PCI:0000:18:00): 99999999999999999999",
        "audit: NVRM: Xid (PCI:0000:18:00): 79, quoted by another",
        "NVRM: GPU 0000:18:00.01: GPU has fallen off the bus",
        "NVRM: GPU 0000:18:00:01: GPU has fallen off the bus",
        "nvidia-nvswitch: SXid (PCI:0000:18:00.0): 12028, no number",
        "usb 1-1: device has fallen off the bus",
        "",
    ],
)
def test_lines_that_say_nothing(text: str) -> None:
    assert said(text) is None


# What a line means


@pytest.mark.parametrize("code", CODES)
def test_every_code(code: int) -> None:
    says = judge(line(xid(code)), LISTENER)
    assert says is not None
    assert says.act is CODES[code].act
    seen = says.events[0]
    assert seen.word == "xid-seen"
    assert seen.fields == {"GPU_LIFECYCLE_GPU": "GPU-a", "GPU_LIFECYCLE_XID": str(code)}
    assert xid(code) in seen.message, "the kernel's own words are the evidence"
    assert "@" not in "".join(event.message for event in says.events)
    if says.act is Act.REFUSE:
        assert says.events[1].word == ("gpu-lost" if code == 79 else "gpu-unfit")
        assert "; on the host: " in says.text


def test_the_table_covers_the_catalogue() -> None:
    """The immediate actions of NVIDIA's catalogue, as of 2025-10; 43, 45 and 48 are judged more strictly than it says."""
    restart = {8, 11, 13, 25, 31, 32, *range(39, 42), 60, *range(68, 73), *range(75, 78), 80, *range(82, 87), 88, 89, 94}
    restart |= {*range(96, 106), *range(126, 136), 139, 43, 45}
    refuse = {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 79, 151, 48}
    log = {14, 37, 38, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161}
    log |= {54, 74, 78, *range(144, 151), 154, 159, 171, 172}
    by_act = {wanted: {code for code, entry in CODES.items() if entry.act is wanted} for wanted in Act}
    assert by_act == {Act.RESTART: restart, Act.REFUSE: refuse, Act.LOG: log}


@pytest.mark.parametrize("code", [13, 31, 43, 45, 94])
def test_whose_process_it_was(code: int) -> None:
    assert act(xid(code)) is Act.RESTART
    assert act(xid(code, ", pid=9, name=python3, m")) is Act.LOG, "another's process on our GPU: its loss, not ours"
    assert act(xid(code, ", pid=9, name=python3, m"), IN_CONTAINER) is Act.RESTART, "the host's pids say nothing in here"
    assert act(xid(code, ", pid='<unknown>', name=<unknown>, m")) is Act.RESTART
    assert act(xid(code, ", Ch 1")) is Act.RESTART


@pytest.mark.parametrize("text", [xid(48), xid(95), xid(79), "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."])
def test_a_broken_gpu_is_broken_whoever_broke_it(text: str) -> None:
    assert act(text.replace("pid=4242", "pid=9")) is Act.REFUSE


def test_a_gpu_lost_without_a_number() -> None:
    says = judge(line("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."), LISTENER)
    assert says is not None
    assert [event.word for event in says.events] == ["xid-seen", "gpu-lost"]
    assert "GPU_LIFECYCLE_XID" not in says.events[0].fields


def test_another_gpu_is_nothing_to_us() -> None:
    lost = "NVRM: GPU 0000:2a:00.0: GPU has fallen off the bus."
    for text in (xid(79, at="PCI:0000:2a:00"), xid(31, at="PCI:0001:18:00"), lost):
        assert judge(line(text), LISTENER) is None


def test_old_lines_never_count_and_a_repeated_code_is_a_new_event() -> None:
    listener = Listener((GPU,), None, after=7)
    assert judge(line(xid(79), 6), listener) is None
    assert judge(line(xid(79), 7), listener) is None
    first, second = judge(line(xid(31), 8), listener), judge(line(xid(31), 9), listener)
    assert first is not None
    assert second is not None


def test_mig() -> None:
    divided = Listener((ClaimedGpu("MIG-a", "0", OURS, instance=2),), None)
    assert act(xid(31, at="PCI:0000:18:00 GPU-I:02 GPU-CI:00"), divided) is Act.RESTART
    assert act(xid(31, at="PCI:0000:18:00 GPU-I:03"), divided) is Act.LOG, "another instance of the same GPU"
    assert act(xid(95, at="PCI:0000:18:00 GPU-I:03"), divided) is Act.REFUSE, "that takes the whole GPU"
    assert act(xid(31, at="PCI:0000:18:00 GPU-I:03")) is Act.RESTART, "the whole GPU is claimed"


def test_a_flood_of_one_thing_is_told_a_few_times_and_hides_nothing_else() -> None:
    texts = [xid(63)] * 5 + [xid(92)] * 300 + [xid(79)] + [xid(63)]
    said = [says for place, text in enumerate(texts) if (says := judge(line(text, place), LISTENER))]
    few = few_of_each(said)
    assert [says.events[0].fields["GPU_LIFECYCLE_XID"] for says in few] == ["63"] * 5 + ["92"] * 8 + ["79", "63"]
    assert few[12].events[0].message.endswith("[and 292 more lines like it]")
    assert sum("like it" in event.message for says in few for event in says.events) == 1
    assert few_of_each(said[:13]) == said[:13]


# The recovery action is the truth


@pytest.mark.parametrize(
    ("code", "recovery", "expected"),
    [
        (48, 0, Act.RESTART), (119, 0, Act.RESTART), (79, 0, Act.REFUSE), (31, 0, Act.RESTART), (63, 0, Act.LOG),
        (31, 1, Act.REFUSE), (63, 2, Act.REFUSE), (31, 3, Act.RESTART), (63, 3, Act.LOG), (48, 3, Act.REFUSE),
        (999, 4, Act.REFUSE), (31, 5, Act.RESTART), (31, 6, Act.REFUSE), (31, 7, Act.REFUSE), (31, 99, Act.RESTART),
        (48, 99, Act.REFUSE), (48, None, Act.REFUSE),
    ],
)  # fmt: skip
def test_recovery_action(code: int, recovery: int | None, expected: Act) -> None:
    assert act(xid(code), recovery=recovery) is expected


def test_softened_refusal_of_another_process_is_logged() -> None:
    assert act(xid(48, ", pid=9, name=x, m"), recovery=0) is Act.LOG


@pytest.mark.parametrize("number", RECOVERY)
def test_the_line_that_names_the_recovery_action(number: int) -> None:
    action = RECOVERY[number]
    changed = f", GPU recovery action changed from 0x0 (None) to {number:#x} ({action.words})"
    says = judge(line(xid(154, changed)), LISTENER, {gpu.uuid: 0 for gpu in LISTENER.gpus})
    assert says is not None
    assert says.act is action.act
    assert action.words in says.text
    assert action.cure.partition("@PCI@")[0] in "".join(event.message for event in says.events)
    assert ("0000:18:00.0" in says.text) == ("@PCI@" in action.cure)


@pytest.mark.parametrize("code", [0, 1, 7, 162, 173, 999, 999999])
def test_an_unknown_code_is_logged_and_nothing_more(code: int) -> None:
    assert act(xid(code)) is Act.LOG


def test_an_nvswitch_is_told_and_nothing_more() -> None:
    says = judge(line("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 33 LTSSM Fault Up"), LISTENER)
    assert says is not None
    assert says.act is Act.LOG
    assert says.events[0].fields == {"GPU_LIFECYCLE_SXID": "20034"}


# What nobody has foreseen

WORDS = st.sampled_from(
    ["NVRM: ", "Xid ", "(PCI:", "0000:", "18:", "00", ".0", "2a:", " GPU-I:", "GPU-CI:", "): ", "79", "31", ", ", "pid=",
     "4242", "'<unknown>'", "name=", "python3", "GPU ", "has ", "fallen off the bus", "\n", "\x00", "²", "٣",
     "caused by previous Xid ", "nvidia-nvswitch0: SXid (", "9" * 400,
     "0x", "recovery action changed from 0x0 (None) to 0x1 (x)", "\udcff"]
)  # fmt: skip


@settings(max_examples=500)
@given(st.lists(WORDS | st.text(max_size=5), max_size=16))
def test_malformed_lines_neither_crash_nor_count_for_another_gpu(parts: list[str]) -> None:
    text = "".join(parts)
    found = said(text)
    if found is None:
        return
    assert text.lstrip().lower().startswith(("nvrm: ", "nvidia-nvswitch"))
    for listener in (LISTENER, Listener((ClaimedGpu("GPU-b", "0", (0, 0x99, 0)),), None)):
        says = judge(found, listener)
        if says is None or says.act is Act.LOG:
            continue
        assert found.pci == OURS
        assert listener is LISTENER
    assert judge(found, Listener((GPU,), None, after=found.sequence)) is None


@settings(max_examples=300)
@given(
    st.sampled_from([xid(79), xid(31), xid(154, ", GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")]),
    st.integers(0, 200),
    st.integers(0, 3),
    st.text(max_size=3),
)
def test_a_damaged_line_is_at_worst_a_line_of_the_gpu_that_it_names(text: str, place: int, cut: int, put: str) -> None:
    damaged = text[:place] + put + text[place + cut :]
    found = said(damaged)
    if found is None:
        return
    says: KernelSays | None = judge(found, Listener((ClaimedGpu("GPU-b", "0", OTHER),), None))
    assert says is None or found.pci == OTHER
