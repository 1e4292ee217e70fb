"""`jaxrl-par eval RUN`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from jaxrl_par import checks
from jaxrl_par.cli import flags
from jaxrl_par.cli.startup import prepare_backend
from jaxrl_par.train.checkpoints import Which
from jaxrl_par.train.evaluate import MAX_EPISODES
from jaxrl_par.train.render import check_gif, play_episode, render
from jaxrl_par.train.run import load


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What `eval` takes."""

    run: Annotated[
        Path,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN", help="a run directory"),
    ]
    episodes: Annotated[int, tyro.conf.arg(help="greedy episodes to play")] = 100
    seed: Annotated[int, tyro.conf.arg(help="of start states and dynamics")] = 0
    checkpoint: Annotated[
        Which, tyro.conf.arg(help="the last state, or the best by evaluation")
    ] = "newest"
    render: Annotated[
        Path | None, tyro.conf.arg(help="also draw an episode, as a .gif")
    ] = None


def run(argv: Sequence[str]) -> int:
    """Evaluate; returns the exit status."""
    given: Arguments = flags.parse(
        Arguments, argv, "jaxrl-par eval", "Play greedy episodes with a trained agent."
    )
    checks.positive_int("episodes", given.episodes, MAX_EPISODES)
    checks.seed("seed", given.seed)
    if given.render is not None:
        check_gif(given.render)
    prepare_backend(samples=0, data=None, device="auto")
    loaded = load(given.run, checkpoint=given.checkpoint)
    evaluation = loaded.evaluate(given.episodes, given.seed)
    returns, lengths = evaluation.returns, evaluation.lengths
    name, steps = loaded.env.spec.name, loaded.env_steps
    print(f"{given.run}: {name}, after {steps:,} steps of training")
    if returns.size:
        print(
            f"  return  {returns.mean():.2f} ± {returns.std():.2f} over {returns.size} "
            f"greedy episodes (lowest {returns.min():.2f}, highest {returns.max():.2f})"
        )
        print(f"  length  {lengths.mean():.1f} steps")
    if evaluation.unfinished:
        print(f"  {evaluation.unfinished} episodes did not end, and are not counted")
    if given.render is not None:
        episode = play_episode(loaded, given.seed)
        render(episode, given.render)
        print(
            f"  drawn   {given.render}: an episode of {len(episode.rewards)} steps, "
            f"return {episode.return_:.2f}"
        )
    return 0
