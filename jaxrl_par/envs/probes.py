"""Probe environments: tiny tasks whose true values are known.

The first five are to be solved in order; which one fails tells where the fault is
(Rahtz 2018; "Debugging RL, without the agonizing pain", Jones 2021, section "probe
environments"). The others test one part of a library each. Values are of the state
under the best policy, with discount gamma.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_par.spaces import ACTION_MASK, Box, Dict, Discrete, MultiDiscrete
from jaxrl_par.types import Array, EnvSpec, Key, StepResult, pytree, static

_UNIT = Box(-1.0, 1.0, (1,))


def _result(obs: Any, reward: Any, terminated: Any) -> StepResult:
    return StepResult(obs, jnp.float32(reward), jnp.bool_(terminated))


def _signs(key: Key, shape: tuple[int, ...]) -> Array:
    return jax.random.rademacher(key, shape, jnp.float32)


@pytree
class ConstantReward:
    """One step, reward 1. Value 1. Fails if: the value loss or optimiser is wrong.

    Observation: 0. Action: Discrete(1). Termination: always.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe:constant-reward", _UNIT, Discrete(1))

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start: (state [1], obs [1])."""
        obs = jnp.zeros(1)
        return obs, obs

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """End with reward 1."""
        return state, _result(state, 1.0, True)


@pytree
class ObsReward:
    """One step, reward equal to the observation. Value: the observation, -1 or 1.

    Fails if: values do not depend on observations.
    Observation: -1 or 1. Action: Discrete(1). Termination: always.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe:obs-reward", _UNIT, Discrete(1))

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start: (state [1], obs [1])."""
        obs = _signs(key, (1,))
        return obs, obs

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """End with the observation as the reward."""
        return state, _result(state, state[0], True)


@pytree
class DelayedReward:
    """Two steps, reward 0, then 1. Values: gamma at the first, 1 at the second.

    Fails if: discounting or bootstrapping is wrong.
    Observation: 0, then 1. Action: Discrete(1). Termination: after two steps.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe:delayed-reward", _UNIT, Discrete(1))

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start: (state [1], obs [1])."""
        obs = jnp.zeros(1)
        return obs, obs

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """Go from 0 to 1; end, with the reward, from 1."""
        return jnp.ones(1), _result(jnp.ones(1), state[0], state[0] > 0.5)


@pytree
class ActionReward:
    """One step, reward 1 for action 1 and -1 for action 0. Value 1; Q -1 and 1.

    Fails if: the policy does not learn.
    Observation: 0. Action: Discrete(2). Termination: always.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe:action-reward", _UNIT, Discrete(2))

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start: (state [1], obs [1])."""
        obs = jnp.zeros(1)
        return obs, obs

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """End with the action's reward."""
        return state, _result(state, 2 * action - 1, True)


@pytree
class ObsActionReward:
    """One step, reward 1 if the action matches the observation, else -1. Value 1.

    Matching: action 1 at observation 1, action 0 at observation -1. Q is ±1.
    Fails if: the policy does not depend on the observation.
    Observation: -1 or 1. Action: Discrete(2). Termination: always.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe:obs-action-reward", _UNIT, Discrete(2))

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start: (state [1], obs [1])."""
        obs = _signs(key, (1,))
        return obs, obs

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """End with 1 for a match."""
        return state, _result(state, (2 * action - 1) * state[0], True)


PROBES = (ConstantReward, ObsReward, DelayedReward, ActionReward, ObsActionReward)


@pytree
class CountingEnv:
    """The observation counts the steps: 0 at the start, t after t steps.

    Reward 1 a step. Value 1 / (1 - gamma) everywhere when only the time limit ends
    episodes (a limit is no end of the task), and
    (1 - gamma^(terminate_at - t)) / (1 - gamma) if it terminates at `terminate_at`.
    Action: Discrete(2), of no effect.
    """

    max_steps: int | None = static(default=5)
    terminate_at: int | None = static(default=None)

    @property
    def spec(self) -> EnvSpec:
        obs_space = Box(0.0, np.inf, (1,))
        return EnvSpec("probe:counting", obs_space, Discrete(2), self.max_steps)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start at 0: (state [1], obs [1])."""
        obs = jnp.zeros(1)
        return obs, obs

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """Count on."""
        count = state + 1
        end = False if self.terminate_at is None else count[0] >= self.terminate_at
        return count, _result(count, 1.0, end)


@pytree
class EchoEnv:
    """Reward 1 if the action is 10 plus the observation, else 0; a new one each step.

    Value 1 / (1 - gamma); best return `max_steps`, of a random policy half of it.
    Observation: 0 or 1. Action: Discrete(2, start=10), so 10 or 11.
    """

    max_steps: int | None = static(default=8)

    @property
    def spec(self) -> EnvSpec:
        obs_space, action_space = Box(0.0, 1.0, (1,)), Discrete(2, start=10)
        return EnvSpec("probe:echo", obs_space, action_space, self.max_steps)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Draw the first: (state [1], obs [1])."""
        obs = jax.random.bernoulli(key, 0.5, (1,)).astype(jnp.float32)
        return obs, obs

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """Compare, then draw the next."""
        obs, _ = self.reset(key)
        return obs, _result(obs, action - 10 == state[0], False)


@pytree
class ContinuousEcho:
    """One step, reward -(action - observation)^2. Value 0; best action: the obs.

    Observation: uniform in ±1. Action: Box [1] in [-2, 2]. Termination: always.
    A wrong scaling of actions shows as a value below 0.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe:continuous-echo", _UNIT, Box(-2.0, 2.0, (1,)))

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Start: (state [1], obs [1])."""
        obs = jax.random.uniform(key, (1,), jnp.float32, -1, 1)
        return obs, obs

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """End with the squared error as the cost."""
        return state, _result(state, -((action[0] - state[0]) ** 2), True)


@pytree
class MaskedAction:
    """One step with four actions, some of them invalid. Reward: the action's number.

    An invalid action pays -10, which no masked policy ever gets. Value: the highest
    valid action; over all masks (each action but 0 is valid half the time, 0 always)
    3/2 + 2/4 + 1/8 = 2.125.
    Observation: {"obs": zeros [1], "action_mask": [4] bool}. Termination: always.
    """

    @property
    def spec(self) -> EnvSpec:
        mask_space = Box(False, True, (4,), np.dtype(np.bool_))
        obs_space = Dict((("obs", _UNIT), (ACTION_MASK, mask_space)))
        return EnvSpec("probe:masked-action", obs_space, Discrete(4))

    def reset(self, key: Key) -> tuple[Array, dict[str, Array]]:
        """Draw the mask: (state [4] bool, obs)."""
        mask = jax.random.bernoulli(key, 0.5, (4,)).at[0].set(True)
        return mask, self._obs(mask)

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """End with the action's number, or -10."""
        reward = jnp.where(state[action], action, -10)
        return state, _result(self._obs(state), reward, True)

    def _obs(self, mask: Array) -> dict[str, Array]:
        return {"obs": jnp.zeros(1), ACTION_MASK: mask}


@pytree
class MultiDiscreteEcho:
    """One step, reward: the share of the two actions that match the observation.

    Value 1; of a random policy (1/2 + 1/3) / 2 = 5/12.
    Observation: [2], whole numbers below (2, 3). Action: MultiDiscrete((2, 3)).
    Termination: always.
    """

    @property
    def spec(self) -> EnvSpec:
        obs_space = Box(np.zeros(2), np.array([1.0, 2.0]))
        action_space = MultiDiscrete((2, 3))
        return EnvSpec("probe:multi-discrete-echo", obs_space, action_space)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Draw the two numbers: (state [2], obs [2])."""
        obs = jnp.asarray(self.spec.action_space.sample(key), jnp.float32)
        return obs, obs

    def step(self, key: Key, state: Array, action: Array) -> tuple[Array, StepResult]:
        """End with the share of matches."""
        return state, _result(state, jnp.mean(action == state), True)
