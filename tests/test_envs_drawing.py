"""Pictures show where things are."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl_par.envs import ActionRepeat, probes
from jaxrl_par.envs.drawing import RENDERERS, Canvas, draw, draw_grid
from jaxrl_par.envs.registry import OWN

ORANGE = (230, 119, 0)  # the pole, the rod, the second link, the car, the walker


def centre(image, colour=ORANGE):
    """Mean (column, row) of a colour's pixels."""
    rows, columns = np.nonzero((image == colour).all(axis=2))
    assert len(rows), "the colour is not in the picture"
    return columns.mean(), rows.mean()


@pytest.mark.parametrize("name", OWN)
def test_every_own_environment_has_a_picture(name):
    env = OWN[name]()
    image = draw(env, env.reset(jax.random.key(0))[0], None)
    assert image.dtype == np.uint8
    assert image.ndim == 3
    assert image.shape[2] == 3
    assert len(RENDERERS) == len(OWN)


@pytest.mark.parametrize(
    ("name", "state", "other", "right", "down"),
    [
        ("CartPole-v1", [0, 0, 0, 0], [1, 0, 0, 0], True, None),
        ("CartPole-v1", [0, 0, 0, 0], [0, 0, 0.5, 0], True, True),  # leans right
        ("Pendulum-v1", [0, 0], [1.5, 0], False, True),  # falls to the left
        ("Acrobot-v1", [0, 0, 0, 0], [1, 0, 0, 0], True, False),  # swings up
        ("Acrobot-v1", [0, 0, 0, 0], [0, 3, 0, 0], True, False),  # folds up
        ("MountainCar-v0", [-0.5, 0], [0.4, 0], True, False),  # drives uphill
        ("MountainCarContinuous-v0", [-0.5, 0], [-1, 0], False, False),
        ("CliffWalking-v0", 36, 25, True, False),  # up and to the right
        ("WindyGridworld-v0", 30, 41, True, True),  # down and to the right
    ],
)
def test_pictures_follow_the_state(name, state, other, right, down):
    env = OWN[name]()
    before, after = (
        centre(draw(env, np.array(s, np.float32), None)) for s in (state, other)
    )
    assert (after[0] > before[0] + 1) == right
    if down is not None:
        assert (after[1] > before[1]) == down


def test_canvas_places_a_disc():
    """Radius 0.5 at (1, 2) in [0, 4] x [0, 3], 10 pixels a unit: area 25 pi."""
    canvas = Canvas((0.0, 0.0), (4.0, 3.0), width=40)
    assert canvas.image.shape == (30, 40, 3)
    canvas.disc((1.0, 2.0), 0.5, ORANGE)
    assert centre(canvas.image) == (9.5, 9.5)  # y is 1 from the top
    assert abs((canvas.image == ORANGE).all(axis=2).sum() - 25 * np.pi) < 6


def test_grids_are_drawn_from_observations():
    obs = np.zeros((4, 5, 2), np.float32)
    obs[1, 2, 1] = 1
    image = draw_grid(obs, size=50)
    assert image.shape == (40, 50, 3)
    rows, columns = np.nonzero(image.any(axis=2))
    assert {rows.min(), rows.max()} == {10, 19}
    assert {columns.min(), columns.max()} == {20, 29}
    pixels = np.zeros((4, 4, 3), np.uint8)
    assert draw_grid(pixels) is pixels


def test_wrapped_environments_are_drawn_and_others_refused():
    env = OWN["CartPole-v1"]()
    state = np.zeros(4, np.float32)
    same = draw(ActionRepeat(env, 2), state, state) == draw(env, state, state)
    assert same.all()
    with pytest.raises(ValueError, match=r"probe:echo has no picture.*CartPole"):
        draw(probes.EchoEnv(), np.zeros(1), np.zeros(1))
