"""Where the time of an update goes: each part alone and the whole, in turns.

    python experiments/bench/breakdown.py --num-envs 4 64 2048 --cores 1

A part runs by itself in a compiled loop, on inputs of a run's own shapes. The "rest"
is what the whole takes beyond its parts: what is copied and counted between them,
and what they lose or gain (fusion, cache) by running apart. "Metrics" is what the
whole saves without them.
"""

from __future__ import annotations

import argparse
from typing import Any

import common
import parts
import worker_ours

import jaxrl_par as jp


def main() -> None:
    args = parse()
    common.use_cores(args.cores)
    algorithm = worker_ours.ppo({"network": args.network})
    env = jp.make(args.env)
    rows = []
    for num_envs in args.num_envs:
        result = parts.measure(algorithm, env, num_envs, args.steps, args.rounds)
        setting = {"env": args.env, "network": args.network, "num_envs": num_envs}
        setting["cores"] = args.cores
        rows.append(setting | result | common.device_about() | common.about())
        print(f"{args.env}, {num_envs:,} environments, {args.network}")
        print(render([rows[-1]]), "\n", flush=True)
    common.write_rows(args.out / "breakdown.jsonl", rows)


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1")
    add("--network", choices=["mlp", "cnn"], default="mlp")
    add("--num-envs", type=int, nargs="+", default=[4, 64, 2048])
    add("--cores", type=int, default=1, help="0: all, used by one device")
    add("--steps", type=float, default=200_000, help="of each timing, at least")
    add("--rounds", type=int, default=5, help="timings of each part, in turns")
    args = parser.parse_args()
    if args.small:
        args.num_envs, args.steps, args.rounds = [4], 2000, 1
    return args


def render(rows: list[dict[str, Any]]) -> str:
    """A table with two columns for each row of results: ns per step, and share."""
    header = ["part", "of"]
    for row in rows:
        header += [f"{row['num_envs']:,}: ns/step", "share"]
    lines = []
    for name, of in rows[0]["part_of"].items():
        line = [name, of]
        for row in rows:
            line += [f"{row['ns_per_step'][name]:,.0f}", f"{row['share'][name]:.0%}"]
        lines.append(line)
    return common.table(header, lines)


if __name__ == "__main__":
    main()
