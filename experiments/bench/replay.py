"""Our replay on its own beside flashbax: adding, drawing, changing priorities.

    python experiments/bench/replay.py

Both engines in one process, in turns. Each operation is timed in a compiled loop of
many, its store carried along and so changed in place, its results kept; and as single
calls from Python, the store donated. Stores are full and have begun anew.

Items are CartPole's (4 float32) or MinAtar-like (10, 10, 4) bool, each with action,
reward and end. Samples have obs, action, reward, next obs and end, prioritised ones
also their leaves and probabilities. A batch is what is drawn or changed at once; or
added at once, by 8 environments: 8 is one step of each. Each engine gets its inputs in
the layout that it asks for. Without flashbax (`pip install 'jaxrl_par[bench]'`) ours is
timed alone.

On a shared machine `--cores 1 --cpu-time` is steadier: one core, and only the time that
this process has it.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import common
import jax
import jax.numpy as jnp
import replay_engines as engines

# And the items that it is timed on.
OPERATIONS = {
    "add": ("cartpole", "minatar"),
    "sample": ("cartpole", "minatar"),
    "prioritised add": ("cartpole",),
    "prioritised sample": ("cartpole",),
    "priorities": ("cartpole",),
}
WAYS = ("loop", "call")


def main() -> None:
    args = parse()
    common.use_cores(args.cores)
    names = list(engines.ENGINES)
    if not importlib.util.find_spec("flashbax"):
        print("flashbax is not installed: ours alone")
        names.remove("flashbax")
    rows = []
    for setting in settings(args):
        times = measure(args, names, setting)
        rows.append(vars(setting) | {"seconds": times, "num_envs": engines.NUM_ENVS})
        rows[-1] |= {"cpu_time": args.cpu_time}
        rows[-1] |= common.device_about() | common.about()
        print("  ".join(cells(rows[-1])), flush=True)
        common.append_row(args.out / "replay.jsonl", rows[-1])
    print(f"raw results: {args.out / 'replay.jsonl'}\n\n{render(rows)}")


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    add = parser.add_argument
    add("--operations", nargs="+", choices=list(OPERATIONS), default=list(OPERATIONS))
    add("--kinds", nargs="+", choices=list(engines.KINDS), default=list(engines.KINDS))
    add("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    add("--batch", type=int, nargs="+", default=[32, 256, 4096])
    add("--rounds", type=int, default=15, help="timings of each cell, in turns")
    add("--seconds", type=float, default=0.02, help="of a timing, about")
    add("--cores", type=int, default=0, help="0: all")
    add("--cpu-time", action="store_true", help="of this process, not the clock's")
    args = parser.parse_args()
    if args.small:
        args.items, args.batch = [2000], [32]
        args.rounds, args.seconds = 2, 0.002
    return args


def settings(args: argparse.Namespace) -> list[engines.Setting]:
    return [
        engines.Setting(operation, kind, items, batch)
        for operation in args.operations
        for kind in OPERATIONS[operation]
        for items in args.items
        for batch in ([engines.NUM_ENVS] if "add" in operation else []) + args.batch
        if kind in args.kinds
    ]


def measure(
    args: argparse.Namespace, names: list[str], setting: engines.Setting
) -> dict[str, dict[str, list[float]]]:
    """Seconds of one operation, {"loop" or "call": {engine: of each round}}."""
    timers: dict[str, dict[str, Callable[[], float]]] = {way: {} for way in WAYS}
    clock = time.process_time if args.cpu_time else time.perf_counter
    for name in names:
        store, call = engines.operation(name, setting)
        own = jax.tree.map(jnp.copy, store)
        timers["loop"][name] = Loop(call, own, args.seconds, clock)
        writes = setting.operation in engines.WRITES
        timers["call"][name] = Calls(call, store, writes, args.seconds, clock)
    found = {way: {name: [] for name in names} for way in WAYS}
    for turn in range(args.rounds):
        for way in WAYS:
            for name in names if turn % 2 else names[::-1]:
                found[way][name].append(timers[way][name]())
    return found


class Loop:
    """Seconds of an operation in a compiled loop of many."""

    def __init__(self, call: Any, store: Any, seconds: float, clock: Any) -> None:
        def run(store: Any, results: Any, first: Any, times: Any) -> Any:
            def body(i: Any, carry: Any) -> Any:
                return call(carry[0], first + i)

            return jax.lax.fori_loop(0, times, body, (store, results))

        shapes = jax.eval_shape(call, store, 0)[1]
        results = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        self._run = jax.jit(run, donate_argnums=(0, 1))
        self._carry, self._made, self._times = (store, results), 0, 1
        self._clock = clock
        self()
        while (taken := self() * self._times) < seconds / 2:
            self._times *= min(10, max(2, int(seconds / taken)))

    def __call__(self) -> float:
        begin = self._clock()
        made = self._run(*self._carry, self._made, self._times)
        self._carry = jax.block_until_ready(made)
        self._made += self._times
        return (self._clock() - begin) / self._times


class Calls:
    """Seconds of an operation called from Python, each waited for."""

    def __init__(
        self, call: Any, store: Any, writes: bool, seconds: float, clock: Any
    ) -> None:
        part = 0 if writes else 1  # without the store, which would be copied
        self._run = jax.jit(
            lambda store, i: call(store, i)[part], donate_argnums=(0,) if writes else ()
        )
        self._store, self._writes, self._times = store, writes, 1
        self._clock = clock
        self()
        self._times = min(200, max(5, int(seconds / self())))

    def __call__(self) -> float:
        begin = self._clock()
        for i in range(self._times):
            made = jax.block_until_ready(self._run(self._store, i))
            if self._writes:
                self._store = made
        return (self._clock() - begin) / self._times


def ratios(seconds: dict[str, list[float]]) -> list[str]:
    """How many times as long flashbax takes: in the median round, and by the fastest
    round of each, which neighbours disturb least.
    """
    if "flashbax" not in seconds:
        return ["", ""]
    ours, peer = seconds["ours"], seconds["flashbax"]
    pairs = [b / a for a, b in zip(ours, peer, strict=True)]
    return [f"{common.median(pairs):.2f}", f"{min(peer) / min(ours):.2f}"]


def cells(row: dict[str, Any]) -> list[str]:
    line = [row["operation"], row["kind"], f"{row['items']:,}", f"{row['batch']:,}"]
    for way in WAYS:
        seconds = row["seconds"][way]
        for name in engines.ENGINES:
            found = seconds.get(name)
            line.append(f"{1e6 * common.median(found):,.2f}" if found else "")
        line += ratios(seconds)
    return line


def render(rows: list[dict[str, Any]]) -> str:
    """One line for each cell: microseconds, and how many times as fast ours is."""
    header = ["operation", "item", "items", "batch"]
    for way in WAYS:
        header += [f"{way}, µs: ours", "flashbax", "ratio", "fastest"]
    return common.table(header, [cells(row) for row in rows])


if __name__ == "__main__":
    main()
