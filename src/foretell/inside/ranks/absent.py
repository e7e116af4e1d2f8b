"""A job of which only some ranks run: what those that run find where the others would be.

PyTorch's own ProcessGroupNCCL runs, above the virtual NCCL. It meets the other ranks in a store, which is ours here:
names of communicators follow from the keys under which torch looks for them, so that all ranks that run find the same,
also one that is started later. The virtual NCCL is told who is in each communicator; what the absent ones would say it
takes to be what this rank says, or it asks for a rank to be started, because this one needs its data.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from ..capture import Capture
from ..where import in_short, where_now

WANTED = "ranks/wanted"
MOST_ON_DEMAND = 32
"""Ranks started because others need their data: more are no longer some of many."""
_PAIR = re.compile(r"(\d+):(\d+)")
_OF_NCCL = "//cuda//"
"""In the keys of names of communicators: `<group>//cuda//<number>`, `<group>//cuda//<number>/nccl_storekey_<n>`."""


class Absent:
    """What a process knows of the ranks of its job, once it is known that not all run."""

    def __init__(self, capture: Capture, torch: Any, library: Any) -> None:
        self._capture = capture
        self._torch = torch
        self._library = library
        self._groups: dict[str, list[int]] = {}
        """Ranks of each process group, by its name."""
        self._asked: set[int] = set()
        self._noted: set[str] = set()
        """Lines at which Gloo would have brought data of another rank."""
        self._rank = 0
        self._stores: list[Any] = []
        """For ever: a store's Python half dies with its last reference."""
        library.foretell_communicator.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p]
        library.foretell_wait.argtypes = [ctypes.c_char_p]
        library.foretell_gather_or_scatter.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
        self._on_need = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p)(self._need)

    def install(self) -> None:
        c10d, patches = self._torch.distributed.distributed_c10d, self._capture.patches
        self._library.foretell_on_need(self._on_need)
        patches.wrap(c10d, "_new_process_group_helper", self._noting_groups)
        if hasattr(self._torch.distributed.ProcessGroup, "split_group"):
            patches.wrap(self._torch.distributed.ProcessGroup, "split_group", self._noting_splits)
        for name in ("_verify_params_across_processes", "_broadcast_coalesced"):
            for module in (self._torch.distributed, c10d):
                if hasattr(module, name):
                    patches.wrap(module, name, self._among_replicas)
        patches.wrap(self._torch.distributed.Reducer, "_rebuild_buckets", self._among_replicas)
        for module in (self._torch.distributed, c10d):
            for name in ("gather", "scatter"):
                patches.wrap(module, name, self._from_like_ranks)
            for name in ("broadcast", "gather", "scatter"):
                patches.wrap(module, name, self._noting_gloo)
        self._capture.imports.when_imported("torch.distributed.checkpoint.default_planner", self._save_in_part)
        self._replace_gloo(c10d)

    def joins(self, rank: int, world_size: int, size: int) -> None:
        if world_size != size:
            self._capture.refuse(
                f"the script makes a process group of {world_size} ranks, but the job has {size}",
                "Give the number of ranks that the script uses: --world-size",
            )
        given = os.environ.get("RANK", "")
        if given.isdecimal() and int(given) != rank:
            self._capture.refuse(
                f"foretell has started rank {given} of this job, but the script says that it is rank {rank}",
                "A script that starts its ranks itself (mp.spawn) runs all of them: leave out --world-size and --ranks",
            )
        self._rank = rank

    def store(self) -> Any:
        """In the place of a TCPStore."""
        self._stores.append(store_class(self._torch)(self))
        return self._stores[-1]

    # --- names of communicators ---------------------------------------------------------------------------------------

    def is_name(self, key: str) -> bool:
        return _OF_NCCL in key

    def name_of(self, key: str) -> bytes:
        """What stands under this key: 128 bytes that follow from it. The virtual NCCL learns whose it is."""
        name = (hashlib.sha512(key.encode()).digest() * 2)[:128]
        self.tell(key, name)
        return name

    def tell(self, key: str, unique_id: bytes) -> None:
        ranks = self._ranks_of(key)
        if ranks is None:
            return
        members = (ctypes.c_int32 * len(ranks))(*ranks)
        number = int.from_bytes(hashlib.sha512(key.encode()).digest()[:8], "little")
        self._library.foretell_communicator(unique_id, number, len(ranks), members)

    def _ranks_of(self, key: str) -> list[int] | None:
        prefix, _, rest = key.partition(_OF_NCCL)
        parts = prefix.split("/")
        ranks = next((self._groups[part] for part in reversed(parts) if part in self._groups), None)
        pair = _PAIR.search(rest)
        if ranks is None or pair is None:
            return ranks
        return [ranks[int(pair[1])], ranks[int(pair[2])]]

    def _noting_groups(self, original: Any) -> Any:
        @wraps(original)
        def new_group(group_size: int, group_rank: int | None, ranks: Any, *args: Any, **kwargs: Any) -> Any:
            name = kwargs.get("group_name", args[2] if len(args) > 2 else None)
            members = list(ranks) if ranks else list(range(group_size))
            self._groups[str(name)] = members
            return self._splitting(members, lambda: original(group_size, group_rank, ranks, *args, **kwargs))

        return new_group

    def _noting_splits(self, original: Any) -> Any:
        @wraps(original)
        def split_group(group: Any, ranks: Sequence[int], *args: Any, **kwargs: Any) -> Any:
            of_parent = self._torch.distributed.get_process_group_ranks(group)
            members = [of_parent[rank] for rank in ranks]
            result = self._splitting(members, lambda: original(group, ranks, *args, **kwargs))
            if result is not None:
                self._groups[str(result.group_name)] = members
            return result

        return split_group

    def _splitting(self, members: list[int], call: Any) -> Any:
        """ncclCommSplit does not say who will be in the new communicator."""
        if self._rank in members:
            self._library.foretell_next_split(len(members), (ctypes.c_int32 * len(members))(*members))
        try:
            return call()
        finally:
            self._library.foretell_next_split(0, None)

    # --- data of ranks that do not run --------------------------------------------------------------------------------

    def _among_replicas(self, original: Any) -> Any:
        """DDP compares its parameters, and distributes buffers, that all ranks have alike."""

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._library.foretell_replicas(1)
            try:
                return original(*args, **kwargs)
            finally:
                self._library.foretell_replicas(0)

        return call

    def _from_like_ranks(self, original: Any) -> Any:
        """What is gathered from ranks that do not run is like this rank's own. Neither are those that it gathers from,
        or scatters to, stages of a pipeline."""

        @wraps(original)
        def gather_or_scatter(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(("tensor", "gather_list"), args, strict=False)), **kwargs}
            own: Any = given.get("tensor") if original.__name__ == "gather" and given.get("gather_list") else None
            if getattr(own, "is_cuda", False) and not hasattr(own, "__tensor_flatten__"):
                self._library.foretell_gather_or_scatter(1, own.data_ptr(), own.nbytes)
            else:
                self._library.foretell_gather_or_scatter(1, None, 0)
            try:
                return original(*args, **kwargs)
            finally:
                self._library.foretell_gather_or_scatter(0, None, 0)

        return gather_or_scatter

    def _noting_gloo(self, original: Any) -> Any:
        """Gloo moves no data here (see `_replace_gloo`): what another rank would have sent stays as it is."""
        parameters = inspect.signature(original)

        @wraps(original)
        def exchange(*args: Any, **kwargs: Any) -> Any:
            given = parameters.bind(*args, **kwargs).arguments
            if getattr(given.get("tensor"), "device", None) == self._torch.device("cpu"):
                in_group = given.get("group_src")
                root = given.get("src", 0) if in_group is None else in_group
                own = self._torch.distributed.get_rank(None if in_group is None else given.get("group"))
                if original.__name__ == "gather" or root != own:
                    self._note_gloo(f"{original.__name__} at {in_short(where_now())}")
            return original(*args, **kwargs)

        return exchange

    def _note_gloo(self, call: str) -> None:
        if call not in self._noted:
            self._noted.add(call)
            self._capture.caveat(
                f"{call} uses Gloo, which moves no data if only some ranks run: "
                "what the script does with what other ranks send may differ (--ranks all)"
            )

    def _save_in_part(self, planner: Any) -> None:
        """A distributed checkpoint has the shards of the ranks that run. The plans of the others are like theirs: what
        several ranks have is saved by one of them, which must be one that runs."""

        def without_the_others(original: Any) -> Any:
            @wraps(original)
            def create_global_plan(planner: Any, plans: list[Any]) -> Any:
                own: list[Any] = []
                for number, plan in enumerate(plans):
                    if plan in own:
                        plans[number] = replace(plan, items=[])
                    else:
                        own.append(plan)
                return original(planner, plans)

            return create_global_plan

        def in_part(original: Any) -> Any:
            @wraps(original)
            def validate(*args: Any, **kwargs: Any) -> Any:
                """A list of errors, or whether there are none (torch 2.6)."""
                return [] if isinstance(original(*args, **kwargs), list) else True

            return validate

        self._capture.patches.wrap(planner.DefaultSavePlanner, "create_global_plan", without_the_others)
        self._capture.patches.wrap(planner, "_validate_global_plan", in_part)

    def _need(self, rank: int, what: bytes | None) -> int:
        """Called by the virtual NCCL, in a thread that waits for that rank's data. Without `what` nobody waits, but the
        rank is another stage of a pipeline."""
        if rank in self._asked:
            return 1
        where = where_now()
        if len(self._asked) >= MOST_ON_DEMAND:
            if what is None:
                return 0
            self.refuse(f"data of rank {rank} ({what.decode()}), which is not run", where)
        self._asked.add(rank)
        try:
            name = "a stage of the pipeline" if what is None else what.decode()
            self._capture.journal.write("rank_needed", rank=rank, by=self._rank, what=name, where=where)
            if self._library.foretell_run_on_demand(rank):
                with open(os.path.join(self._capture.options.directory, WANTED), "wb", buffering=0) as pipe:
                    pipe.write(b"%d\n" % rank)
        except Exception as error:
            self._capture.hook_failed("a rank that does not run", error)
            return 0
        return 1

    def refuse(self, what: str, where: str | None) -> None:
        at = f" at {in_short(where)}" if where else ""
        self._capture.refuse(
            f"rank {self._rank}{at} waits for {what}",
            "Name the ranks that need each other (--ranks 0,1,2), or run all of them (--ranks all)",
        )

    def waits_for_key(self, key: str) -> None:
        """Look once more in a while; ends this process if nobody is left who could set it."""
        if self._library.foretell_wait(f"a store, for {key}".encode()):
            name = key.rpartition("//")[2]
            self.refuse(f"the key {name!r} of a store, which a rank that is not run would set", where_now())

    def goes_on(self) -> None:
        self._library.foretell_wait(None)

    def path_of(self, key: str) -> str:
        name = hashlib.sha1(key.encode()).hexdigest()
        return os.path.join(self._capture.options.directory, "ranks", f"key-{name}")

    # --- gloo ---------------------------------------------------------------------------------------------------------

    def _replace_gloo(self, c10d: Any) -> None:
        """Gloo would connect to every rank; torch's fake process group does not."""
        fake = getattr(self._torch._C._distributed_c10d, "FakeProcessGroup", None)
        if fake is None or not hasattr(c10d, "ProcessGroupGloo"):
            return

        if hasattr(fake, "_create_internal"):

            def create(store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
                return fake._create_internal(rank, size, fake.Options())

            self._capture.patches.replace(c10d, "ProcessGroupGloo", create)
            return

        class Gloo(fake):  # type: ignore[misc, valid-type]
            """Torch 2.6 asks whether what it has made is one, and numbers its calls."""

            def __init__(self, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> None:
                super().__init__(rank, size)

            def _set_sequence_number_for_group(self) -> None:
                pass

        self._capture.patches.replace(c10d, "ProcessGroupGloo", Gloo)


def as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


_classes: dict[Any, Any] = {}


def store_class(torch: Any) -> Any:
    """A subclass of torch's Store: C++ calls its methods. Values are files, which the ranks that run share."""
    if torch in _classes:
        return _classes[torch]

    class Store(torch.distributed.Store):  # type: ignore[misc]
        def __init__(self, absent: Absent) -> None:
            super().__init__()
            self.absent = absent

        def set(self, key: str, value: Any) -> None:
            value = as_bytes(value)
            if self.absent.is_name(key) and len(value) == 128:
                self.absent.tell(key, value)
            else:
                self._write(key, value)

        def get(self, key: str) -> bytes:
            if self.absent.is_name(key):
                return self.absent.name_of(key)
            while (value := self._read(key)) is None:
                self.absent.waits_for_key(key)
            self.absent.goes_on()
            return value

        def add(self, key: str, amount: int) -> int:
            # Counts of ranks that have come: there is nobody to wait for.
            value = int(self._read(key) or b"0") + amount
            self._write(key, str(value).encode())
            return value

        def check(self, keys: list[str]) -> bool:
            return all(self.absent.is_name(key) or self._read(key) is not None for key in keys)

        def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
            value, wanted = self._read(key), as_bytes(desired)
            if value is None and expected:
                return as_bytes(expected)
            if (value or b"") != as_bytes(expected):
                return value or b""
            self._write(key, wanted)
            return wanted

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            return

        def delete_key(self, key: str) -> bool:
            try:
                os.unlink(self.absent.path_of(key))
            except OSError:
                return False
            return True

        def num_keys(self) -> int:
            return 0

        def set_timeout(self, timeout: Any) -> None:
            return

        def multi_get(self, keys: list[str]) -> list[bytes]:
            return [self.get(key) for key in keys]

        def multi_set(self, keys: list[str], values: list[Any]) -> None:
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)

        def append(self, key: str, value: Any) -> None:
            self._write(key, (self._read(key) or b"") + as_bytes(value))

        def has_extended_api(self) -> bool:
            return True

        def clone(self) -> Any:
            return self

        def _read(self, key: str) -> bytes | None:
            try:
                with open(self.absent.path_of(key), "rb") as file:
                    return file.read()
            except OSError:
                return None

        def _write(self, key: str, value: bytes) -> None:
            path = self.absent.path_of(key)
            part = f"{path}.{os.getpid()}"
            with open(part, "wb") as file:
                file.write(value)
            os.replace(part, path)

    _classes[torch] = Store
    return Store
