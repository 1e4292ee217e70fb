"""The package's environments pass the check that a user's own has to."""

from __future__ import annotations

import pytest

from jaxrl_par.envs import ActionRepeat, make, probes
from jaxrl_par.envs.base import check_env
from jaxrl_par.envs.registry import OWN

ENVIRONMENTS = [
    *(cls() for cls in OWN.values()),
    ActionRepeat(make("CartPole-v1"), 2),
    *(cls() for cls in probes.PROBES),
    probes.CountingEnv(),
    probes.CountingEnv(terminate_at=3),
    probes.EchoEnv(),
    probes.ContinuousEcho(),
    probes.MaskedAction(),
    probes.MultiDiscreteEcho(),
]


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=lambda env: env.spec.name)
def test_environment_passes(env):
    check_env(env)
