"""When a run evaluates, and when it ends, in updates."""

from __future__ import annotations

import dataclasses

from jaxrl_par.train.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Of a run whose updates have so many steps."""

    config: TrainConfig
    steps_per_update: int

    @property
    def total_updates(self) -> int:
        return self.updates(self.config.total_steps)

    def updates(self, steps: int) -> int:
        """So many steps, rounded up to updates."""
        return -(-steps // self.steps_per_update)

    def until_boundary(self, update: int) -> int:
        """Updates from this one to the next evaluation or the end."""
        left = self.total_updates - update
        every, steps = self.config.eval_every, update * self.steps_per_update
        if not every:
            return left
        return min(left, self.updates((steps // every + 1) * every - steps))

    def crosses(self, update: int, updates: int = 1) -> bool:
        """Whether the last so many updates crossed a multiple of `eval_every`."""
        every, steps = self.config.eval_every, self.steps_per_update
        before = (update - updates) * steps
        return bool(every) and update * steps // every > before // every

    def evaluation_due(self, update: int, updates: int) -> bool:
        """Whether, after so many updates, it is time for one."""
        ended = update == self.total_updates
        return self.config.eval_episodes > 0 and (
            ended or self.crosses(update, updates)
        )
