"""Records of ``/dev/kmsg`` (Documentation/ABI/testing/dev-kmsg of the kernel): ``priority,sequence,usec,flags;text``.

A record ends with a newline; lines after it that begin with a blank belong to it and name the device. What does not print
is written as ``\\xNN``, a newline and a backslash among it.
"""

from __future__ import annotations

import re

from gpu_lifecycle.facts import KernelRecord

TEXT_LIMIT = 4096  # bytes; the kernel's own limit for a record is half of that (kernel/printk/internal.h)

# The flags may be followed by more fields (CONFIG_PRINTK_CALLER adds "caller=T123"); all numbers are bounded, for int()
# of an endless one takes endless.
_RECORD = re.compile(rb"(\d{1,5}),(\d{1,20}),(\d{1,20}),[^;\n]{0,200};([^\n]*)")
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


def records(data: bytes) -> tuple[KernelRecord, ...]:
    """All records in what was read, in order. What is no record is passed over; never raises."""
    found = (_record(line) for line in data.split(b"\n"))
    return tuple(record for record in found if record is not None)


def _record(line: bytes) -> KernelRecord | None:
    match = _RECORD.match(line)
    if not match:
        return None
    priority = int(match[1])
    if priority >> 3:  # a facility: user space wrote it, for the kernel lets it claim any but the kernel's own, 0
        return None
    text = _ESCAPE.sub(lambda escape: bytes((int(escape[1], 16),)), match[4][:TEXT_LIMIT])
    return KernelRecord(int(match[2]), int(match[3]) / 1e6, priority & 7, text.decode("utf-8", "surrogateescape"))
