"""Pictures of environments, on the host in NumPy: `draw(env, state, obs)`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_par.envs import cliff_walking, windy_gridworld
from jaxrl_par.envs.acrobot import Acrobot
from jaxrl_par.envs.cartpole import CartPole
from jaxrl_par.envs.cliff_walking import CliffWalking
from jaxrl_par.envs.mountain_car import MountainCar
from jaxrl_par.envs.mountain_car_continuous import MountainCarContinuous
from jaxrl_par.envs.pendulum import Pendulum
from jaxrl_par.envs.windy_gridworld import WindyGridworld
from jaxrl_par.envs.wrappers import ActionRepeat
from jaxrl_par.types import PyTree

Point = tuple[float, float]
Colour = tuple[int, int, int]

_DARK, _GREY = (52, 58, 64), (173, 181, 189)
_BLUE, _ORANGE, _GREEN = (51, 103, 214), (230, 119, 0), (47, 158, 68)


class Canvas:
    """An image [height, width, 3] uint8 with an axis upwards, painted in place.

    `low` and `high` are the world's corners, in its own units.
    """

    def __init__(self, low: Point, high: Point, width: int = 240) -> None:
        scale = width / (high[0] - low[0])
        height = round((high[1] - low[1]) * scale)
        self.image = np.full((height, width, 3), 255, np.uint8)
        x = low[0] + (np.arange(width) + 0.5) / scale
        y = high[1] - (np.arange(height) + 0.5) / scale
        self.x, self.y = np.meshgrid(x, y)

    def rectangle(self, low: Point, high: Point, colour: Colour) -> None:
        """Fill the rectangle between two corners."""
        inside_x = (self.x >= low[0]) & (self.x <= high[0])
        self.image[inside_x & (self.y >= low[1]) & (self.y <= high[1])] = colour

    def disc(self, centre: Point, radius: float, colour: Colour) -> None:
        """Fill a disc."""
        self.line(centre, centre, 2 * radius, colour)

    def line(self, start: Point, end: Point, width: float, colour: Colour) -> None:
        """Draw a line with round ends: all points within width / 2 of it."""
        along_x, along_y = end[0] - start[0], end[1] - start[1]
        from_x, from_y = self.x - start[0], self.y - start[1]
        square = along_x**2 + along_y**2 or 1.0
        share = np.clip((from_x * along_x + from_y * along_y) / square, 0, 1)
        distance = np.hypot(from_x - share * along_x, from_y - share * along_y)
        self.image[distance <= width / 2] = colour

    def below(self, heights: Callable, colour: Colour) -> None:
        """Fill what is below the curve y = heights(x)."""
        self.image[self.y <= heights(self.x)] = colour


def draw_cartpole(env: CartPole, state: np.ndarray) -> np.ndarray:
    """Cart, pole and track; the track's ends are where the episode ends."""
    x, angle, edge = state[0], state[2], env.x_threshold
    canvas = Canvas((-edge - 0.4, -0.6), (edge + 0.4, 1.4))
    canvas.rectangle((-edge, -0.04), (edge, 0.0), _GREY)
    canvas.rectangle((x - 0.3, -0.15), (x + 0.3, 0.15), _DARK)
    length = 2 * float(env.half_length)
    tip = (x + length * math.sin(angle), length * math.cos(angle))
    canvas.line((x, 0.0), tip, 0.1, _ORANGE)
    canvas.disc((x, 0.0), 0.06, _BLUE)
    return canvas.image


def draw_pendulum(env: Pendulum, state: np.ndarray) -> np.ndarray:
    """The rod; positive angles lean to the left, as Gymnasium draws them."""
    length = float(env.length)
    reach = 1.3 * length
    canvas = Canvas((-reach, -reach), (reach, reach), width=200)
    tip = (-length * math.sin(state[0]), length * math.cos(state[0]))
    canvas.line((0.0, 0.0), tip, 0.2 * length, _ORANGE)
    canvas.disc((0.0, 0.0), 0.05 * length, _DARK)
    return canvas.image


def draw_acrobot(env: Acrobot, state: np.ndarray) -> np.ndarray:
    """Both links, and the line that the end must reach."""
    upper, lower = float(env.length_1), 2 * float(env.centre_2)
    reach = 1.1 * (upper + lower)
    canvas = Canvas((-reach, -reach), (reach, reach), width=200)
    canvas.line((-reach, upper), (reach, upper), 0.03, _GREEN)
    elbow = (upper * math.sin(state[0]), -upper * math.cos(state[0]))
    angle = state[0] + state[1]
    hand = (elbow[0] + lower * math.sin(angle), elbow[1] - lower * math.cos(angle))
    canvas.line((0.0, 0.0), elbow, 0.16, _BLUE)
    canvas.line(elbow, hand, 0.16, _ORANGE)
    for joint in ((0.0, 0.0), elbow):
        canvas.disc(joint, 0.06, _DARK)
    return canvas.image


def draw_mountain_car(
    env: MountainCar | MountainCarContinuous, state: np.ndarray
) -> np.ndarray:
    """The valley, the car and the flag."""

    def height(x: Any) -> Any:
        return 0.45 * np.sin(3 * x) + 0.55

    canvas = Canvas((env.min_position, 0.0), (env.max_position, 1.2))
    canvas.below(height, _GREY)
    goal = float(env.goal_position)
    foot, top = (goal, height(goal)), (goal, height(goal) + 0.15)
    canvas.line(foot, top, 0.015, _DARK)
    canvas.rectangle((goal, top[1] - 0.06), (goal + 0.07, top[1]), _GREEN)
    canvas.disc((state[0], height(state[0]) + 0.03), 0.04, _ORANGE)
    return canvas.image


def draw_cliff_walking(env: CliffWalking, state: np.ndarray) -> np.ndarray:
    """The cliff, the goal and the walker."""
    columns = cliff_walking.COLUMNS
    canvas = Canvas((0.0, 0.0), (columns, cliff_walking.ROWS))
    canvas.rectangle((1.0, 0.0), (columns - 1.0, 1.0), _GREY)
    return _walk(canvas, columns, cliff_walking.GOAL, int(state))


def draw_windy_gridworld(env: WindyGridworld, state: np.ndarray) -> np.ndarray:
    """The wind, a bar as high as it carries, the goal and the walker."""
    columns = windy_gridworld.COLUMNS
    canvas = Canvas((0.0, 0.0), (columns, windy_gridworld.ROWS))
    for column, wind in enumerate(windy_gridworld.WIND):
        canvas.rectangle((column + 0.4, 0.0), (column + 0.6, wind), _GREY)
    return _walk(canvas, columns, windy_gridworld.GOAL, int(state))


def _walk(canvas: Canvas, columns: int, goal: int, cell: int) -> np.ndarray:
    """Put the goal and the walker into cells of size 1, counted from the top left."""
    top = canvas.image.shape[0] * columns / canvas.image.shape[1]
    for number, radius, colour in ((goal, 0.45, _GREEN), (cell, 0.3, _ORANGE)):
        row, column = divmod(number, columns)
        canvas.disc((column + 0.5, top - row - 0.5), radius, colour)
    return canvas.image


RENDERERS: dict[type, Callable[[Any, np.ndarray], np.ndarray]] = {
    CartPole: draw_cartpole,
    Pendulum: draw_pendulum,
    Acrobot: draw_acrobot,
    MountainCar: draw_mountain_car,
    MountainCarContinuous: draw_mountain_car,
    CliffWalking: draw_cliff_walking,
    WindyGridworld: draw_windy_gridworld,
}


def draw(env: Any, state: PyTree, obs: PyTree) -> np.ndarray:
    """One environment's picture, [height, width, 3] uint8.

    By its entry in `RENDERERS`, or else by its observation if that is a grid [h, w]
    or [h, w, channels]. Raises ValueError if it is neither.
    """
    while isinstance(env, ActionRepeat):
        env = env.env
    if type(env) in RENDERERS:
        return RENDERERS[type(env)](env, np.asarray(state))
    shape = np.shape(obs) if not isinstance(obs, dict) else ()
    if len(shape) not in (2, 3) or min(shape) < 2:
        known = [cls.__name__ for cls in RENDERERS]
        raise ValueError(
            f"{env.spec.name} has no picture: its obs is no grid, and RENDERERS has "
            f"only {known}; add a function of (env, state) to it"
        )
    return draw_grid(np.asarray(obs))


def draw_grid(obs: np.ndarray, size: int = 200) -> np.ndarray:
    """A grid [h, w] or [h, w, channels], each channel in its colour.

    Three channels of uint8 are taken as the picture itself.
    """
    if obs.dtype == np.uint8 and obs.shape[2:] == (3,):
        return obs
    channels = obs.reshape(*obs.shape[:2], -1).astype(np.float32)
    peak = channels.max(axis=(0, 1))
    hues = np.arange(channels.shape[2]) / channels.shape[2]
    phases = np.array([0.0, 1 / 3, 2 / 3])
    colours = 0.5 + 0.5 * np.cos(2 * np.pi * (hues[:, None] - phases))
    image = np.zeros((*obs.shape[:2], 3))
    for i, colour in enumerate(colours):  # a later channel covers an earlier one
        share = channels[:, :, i : i + 1] / (peak[i] or 1)
        image = image * (1 - share) + colour * share
    scale = max(1, size // max(image.shape[:2]))
    large = image.repeat(scale, axis=0).repeat(scale, axis=1)
    return (255 * np.clip(large, 0, 1)).astype(np.uint8)
