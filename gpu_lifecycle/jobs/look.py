"""One look at the running engine: memory, socket, health, processes, each with its own deadline."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from gpu_lifecycle.errors import BlindError
from gpu_lifecycle.facts import ErrorClass, Gpu, GpuView, Identity
from gpu_lifecycle.jobs.keys import EngineKey
from gpu_lifecycle.jobs.pulse import Pulse
from gpu_lifecycle.jobs.release import RELEASED
from gpu_lifecycle.rules.endpoints import Endpoint
from gpu_lifecycle.rules.events import Event
from gpu_lifecycle.rules.life import Life
from gpu_lifecycle.rules.quantity import show_duration
from gpu_lifecycle.rules.readiness import NOT_ASKED, Health, Look, Signs, Socket
from gpu_lifecycle.system.engine import Family
from gpu_lifecycle.system.gpu import GpuProbe
from gpu_lifecycle.system.journal import Journal
from gpu_lifecycle.system.procfs import Proc
from gpu_lifecycle.system.sockets import (
    Listener,
    addresses,
    answers_for,
    describe_owner,
    owner_of,
    tcp_listeners,
    unix_listeners,
)

if TYPE_CHECKING:
    from gpu_lifecycle.rules.config import Config

NVML_SECONDS = 10.0
RECOVERY_SECONDS = 3.0
GENERATE_SECONDS = 120.0  # the first request may compile kernels for a minute
CONNECTION_REFUSED = Health(None, "nobody listens yet")


class Looker:
    """Looks at one engine. Keeps what a next look need not find out again."""

    def __init__(self, config: Config, proc: Proc, family: Family, probe: GpuProbe, key: EngineKey) -> None:
        self.config = config
        self.proc = proc
        self.family = family
        self.probe = probe
        self.endpoint = config.server.endpoint()
        self.pulse = Pulse(config, key, proc)
        self.generated: Health | None = Health(None, "not asked yet") if self.pulse.request else None
        self.addresses = addresses(self.endpoint.host)  # once: a look must not wait for a name server
        self.title = re.compile(config.server.preset.worker_title) if config.server.preset.worker_title else None
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="nvml")  # the helper is asked by one thread at a time
        self.view: GpuView | None = None
        self.only: list[int] | None = None  # NVML indices of the claimed GPUs
        self.baseline: dict[str, int | None] = {}  # what each claimed GPU held before the engine was started
        self._known: dict[int, tuple[int, int]] = {}  # inode: pid and start ticks of its owner in the unit
        self._strangers: dict[int, str] = {}
        self._titles: dict[Identity, bool] = {}

    def begin(self, gpus: Sequence[Gpu]) -> None:
        """These were claimed, and looked like this, before the engine was started. No other GPU is opened from here on."""
        self.baseline = {gpu.uuid: gpu.used for gpu in gpus}
        self.only = [gpu.index for gpu in gpus]
        self.probe.release(0)

    def release(self, journal: Journal) -> None:
        """Somebody wants a GPU without our handle on it: ``gpu-lifecycle gpus --release``."""
        self.probe.release(RELEASED)
        journal.tell(Event("nvml-released", f"NVML is let go of for {show_duration(RELEASED)}"))

    async def look(self, uuids: tuple[str, ...], life: Life, deadline: float) -> Look:
        """Asks NVML and the endpoint at once. Raises BlindError where the unit's own cgroup cannot be read."""
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(self.threads, self.probe.view, NVML_SECONDS, self.only)
        try:
            alive = self.family.living(self.probe.pids)
            socket = self.socket(alive)
            signs = Signs()
            if not socket.listening:
                health = CONNECTION_REFUSED
            elif life.was_ready and socket.ours:
                health, signs = await self.pulse.take(life, deadline, lambda: self.page_is_ours(alive))
            elif life.was_ready:
                health = NOT_ASKED  # a stranger is given no key, and what he says is nothing to us
            else:
                health = await self.pulse.probe.get(self.config.server.preset.ready_path, deadline)
            if health.ok and socket.ours and not life.was_ready:
                await self._generate()
        finally:
            view = await asked
        self.view = view
        if not view.error and not {gpu.uuid for gpu in view.gpus}.issuperset(uuids):
            self.only = None  # an index has moved, as when a GPU was taken out: all are looked at to find each by its UUID
        memory, holders, estimated = _own_memory(view, alive, uuids, self.baseline)
        workers = frozenset(alive[pid] for pid in alive if pid in holders or self._titled(alive[pid]))
        model = self.config.server.served_name() or ""
        error = view.error.text if view.error else ""
        name = model.rstrip("/").rpartition("/")[2]
        room = {gpu.uuid: gpu.free for gpu in view.gpus if gpu.uuid in uuids and gpu.free is not None}
        living = frozenset(alive.values())
        unseen, token = _unseen(view, uuids), self.generated
        return Look(memory, socket, health, workers, living, error, name, token, room, estimated, unseen, signs)

    async def _generate(self) -> None:
        """One real token, once in a run: an endpoint that answers is not yet an engine that works.

        Asked beside the looks, for the first request may compile kernels for a minute, and a look must say so meanwhile.
        """
        if self.generated is None or self.generated.ok:
            return
        self.generated = await self.pulse.token(GENERATE_SECONDS) or Health(None, self.pulse.waiting())

    def _titled(self, identity: Identity) -> bool:
        """Whether its title is a worker's; a title that is not (yet) is read again at the next look."""
        if self.title is None:
            return False
        if not self._titles.get(identity):
            stat = self.proc.stat(identity.pid)
            self._titles[identity] = bool(stat and self.title.search(self.proc.title(identity.pid, stat)))
        return self._titles[identity]

    def socket(self, alive: dict[int, Identity]) -> Socket:
        """Who listens on the engine's address: every listener that a connection could reach must be the unit's."""
        listeners = self._listeners(self.endpoint)
        if not listeners:
            return Socket()
        for listener in listeners:
            if not self._is_ours(listener, alive):
                if listener.inode not in self._strangers:
                    self._strangers = {listener.inode: describe_owner(listener, self.proc)}
                return Socket(listening=True, ours=False, owner=self._strangers[listener.inode])
        return Socket(listening=True, ours=True)

    def page_is_ours(self, alive: dict[int, Identity]) -> bool:
        """Whether a metrics port beside the engine's own belongs to the unit: another server's counters move, too."""
        listeners = self._listeners(self.pulse.page) if self.pulse.page else []
        return bool(listeners) and all(owner_of(item.inode, alive, self.proc) is not None for item in listeners)

    def _listeners(self, endpoint: Endpoint) -> list[Listener]:
        if endpoint.uds:
            return unix_listeners(endpoint.uds)
        return [item for item in tcp_listeners(endpoint.port, self.proc) if answers_for(item, self.addresses)]

    def _is_ours(self, listener: Listener, alive: dict[int, Identity]) -> bool:
        """A socket found once is known by its inode for as long as the process that had it lives."""
        known = self._known.get(listener.inode)
        if known and known[0] in alive and alive[known[0]].start_ticks == known[1]:
            return True
        pid = owner_of(listener.inode, alive, self.proc)
        if pid is None:
            return False
        self._known = {listener.inode: (pid, alive[pid].start_ticks)}
        return True

    async def recovery_actions(self) -> dict[str, int]:
        """What the driver wants done with each claimed GPU (nvmlDeviceGetFieldValues, by UUID), where it says so in time."""
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(self.threads, self.probe.health, RECOVERY_SECONDS, self.only)
        try:
            async with asyncio.timeout(2 * RECOVERY_SECONDS):  # a look may be asking before it
                found = await asked
        except TimeoutError:
            return {}
        known = found if isinstance(found, tuple) else ()
        return {item.uuid: action for item in known if (action := item.values.get("recovery")) is not None}

    async def close(self) -> None:
        await self.pulse.close()
        self.threads.shutdown(wait=True)


def _own_memory(
    view: GpuView, alive: dict[int, Identity], uuids: tuple[str, ...], baseline: Mapping[str, int | None]
) -> tuple[dict[str, int | None], set[int], bool]:
    """Memory of the unit's own processes on each claimed GPU, which of them hold some, and whether a figure is estimated.

    Where the driver does not say how much a process holds, or does not list any, it is what the GPU holds more than before
    the start; None where that is not known either, and nothing where NVML gave no view.
    """
    memory: dict[str, int | None] = {}
    holders: set[int] = set()
    estimated = False
    for gpu in view.gpus:
        if gpu.uuid not in uuids or gpu.error:
            continue
        own = [entry for entry in gpu.processes or () if entry.pid in alive]
        holders |= {entry.pid for entry in own}
        amounts = [entry.memory for entry in own]
        memory[gpu.uuid] = sum(amount or 0 for amount in amounts)
        if gpu.processes is None or None in amounts:
            before = baseline.get(gpu.uuid)
            memory[gpu.uuid] = None if gpu.used is None or before is None else max(0, gpu.used - before)
            estimated = True
    return memory, holders, estimated


def _unseen(view: GpuView, uuids: tuple[str, ...]) -> dict[str, str]:
    """Claimed GPUs that NVML could not read now and may read again. One that is lost, or wants a person, is none of them."""
    return {
        gpu.uuid: f"GPU {gpu.label}: {gpu.error.text}"
        for gpu in view.gpus
        if gpu.uuid in uuids and gpu.error and gpu.error.kind is ErrorClass.RETRY
    }


def own_pids(family: Family, probe: GpuProbe) -> dict[int, Identity] | None:
    """The living processes of the unit; None where they cannot be seen (the post-stop hook looks again, as root)."""
    try:
        return family.living(probe.pids)
    except BlindError:
        return None
