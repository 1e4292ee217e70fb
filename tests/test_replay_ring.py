"""The ring: whole transitions of any length, whatever was overwritten when."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stories

from jaxrl_par import spaces
from jaxrl_par.replay import ring, uniform
from jaxrl_par.types import EnvSpec

# time limit, whether the environment truncates on its own
KINDS = {"no limit": (None, False), "limit": (7, False), "itself": (None, True)}


def told(kind, steps=60, num_envs=3):
    limit, itself = KINDS[kind]
    return stories.tell(steps, num_envs, limit, cut=0.2 if itself else 0.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("length", "capacity", "rollouts"),
    [(1, 15, 3), (1, 15, 40), (4, 30, 2), (4, 30, 9), (5, 15, 7), (4, 12, 5)],
)
def test_every_stored_transition_is_the_storys(kind, length, capacity, rollouts):
    limit, itself = KINDS[kind]
    story = told(kind)
    kept = stories.stored(story, capacity, length, rollouts, limit, itself)
    made = rollouts * length
    assert int(kept.count[0]) == min(made, capacity // 3)
    back, places = stories.places(kept)
    for n in (1, 3):
        found = jax.jit(ring.transitions, static_argnums=2)(kept, places, n, 0.9)
        assert (np.asarray(found.weight) == 1).all()
        for env, (i, b) in itertools.product(range(3), enumerate(back)):
            t = made - b
            reward, discount, after = stories.n_step(story, env, t, n, 0.9, made)
            np.testing.assert_array_equal(found.obs[env, i], story.obs[t, env])
            assert found.action[env, i] == story.action[t, env]
            np.testing.assert_allclose(found.reward[env, i], reward, rtol=1e-5)
            np.testing.assert_allclose(found.discount[env, i], discount, rtol=1e-6)
            if discount:
                np.testing.assert_array_equal(found.next_obs[env, i], after)


@pytest.mark.parametrize(
    ("terminates", "expected"),
    # gamma .9; three steps from r = [1, 2, 3, 4], all values behind them 10, e.g.
    # 1 + .9*2 + .81*3 + .729*10 = 12.52, and 3 + .9*4 + .81*10 = 14.7 cut short
    [(False, [12.52, 15.23, 14.7, 13.0]), (True, [12.52, 7.94, 6.6, 4.0])],
)
def test_a_shortened_sum_has_its_own_discount(terminates, expected):
    story = stories.tell(6, 1, end=0.0)
    story.reward[:] = np.array([1, 2, 3, 4, 50, 50], np.float32)[:, None]
    (story.terminated if terminates else story.truncated)[3] = True
    kept = stories.stored(story, 10, 5, 1, truncates=True)
    slot = jnp.arange(4)
    found = ring.transitions(kept, ring.Place(jnp.zeros(4, int), slot), 3, 0.9)
    np.testing.assert_allclose(found.reward + found.discount * 10, expected, rtol=1e-5)


def test_the_newest_is_never_paired_with_the_oldest():
    """Capacity 5, observations 0 to 7, 7 steps: 2 to 6 are stored, with 3 to 7."""
    story = stories.tell(9, 1, end=0.0)
    kept = stories.stored(story, 5, 1, 7)
    _, places = stories.places(kept)
    found = ring.transitions(kept, places, 1, 0.9)
    assert found.obs[0, :, 2].tolist() == [2, 3, 4, 5, 6]
    assert found.next_obs[0, :, 2].tolist() == [3, 4, 5, 6, 7]


def test_nothing_of_an_empty_slot_is_drawn():
    kept = stories.stored(stories.tell(9, 1, end=0.0), 5, 1, 3)
    place = uniform.draw(kept, jax.random.key(0), (1, 10_000), 1, ())
    found = ring.transitions(kept, place, 1, 0.9)
    assert set(np.unique(found.obs[..., 2])) == {0, 1, 2}
    assert set(np.unique(found.next_obs[..., 2])) == {1, 2, 3}


def test_sequences_are_contiguous_after_a_wrap():
    """20 slots, 3 times 9 steps: 7 to 26 are stored, windows of 5 start at 7 to 22."""
    kept = stories.stored(stories.tell(30, 1, end=0.0), 20, 9, 3)
    place = uniform.draw(kept, jax.random.key(0), (1, 20_000), 1, (), length=5)
    found = jax.jit(ring.sequences, static_argnums=2)(kept, place, 5)
    steps = np.asarray(found.obs)[:, 0, :, 2]
    assert (np.diff(steps, axis=0) == 1).all()
    assert set(np.unique(steps[0])) == set(range(7, 23))
    assert np.asarray(found.mask).all()
    np.testing.assert_array_equal(found.next_obs[:-1], found.obs[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_ends_with_its_episode(kind):
    limit, itself = KINDS[kind]
    story = told(kind)
    kept = stories.stored(story, 60, 4, 12, limit, itself)
    place = uniform.draw(kept, jax.random.key(1), (1, 512), 1, (), length=6)
    found = jax.tree.map(np.asarray, ring.sequences(kept, place, 6))
    episode, first = found.obs[..., 1], found.obs[0, ..., 1]
    np.testing.assert_array_equal(found.mask, episode == first)
    known = found.mask & ~found.terminated
    later = found.obs + np.array([0, 0, 1])
    np.testing.assert_array_equal(found.next_obs[known], later[known])
    assert found.mask[0].all() and not found.mask.all()


def test_truncations_closer_than_rows_were_made_for_are_not_learned():
    """Every second rollout of 4 is not stored, an episode has 8 steps: 6 are cut in 24,
    where without gaps it would be 3.
    """
    story = stories.tell(200, 1, limit=8, end=0.0)
    kept = ring.empty(stories.spec(8), 1, 24, 4, jnp.int32(0))
    for start in range(4, 80, 8):
        part = stories.rollout(story, start, 4, 1)
        kept = ring.add(kept, part, part.action)
    _, places = stories.places(kept)
    for name in ("transitions", "sequences"):
        found = getattr(ring, name)(kept, places, 1, *(0.9,)[: name == "transitions"])
        known = found.weight > 0 if name == "transitions" else found.mask
        step = np.asarray(found.next_obs - found.obs)[np.asarray(known)]
        np.testing.assert_array_equal(step, [[0, 0, 1]] * len(step))
        assert len(step) == 24 - 6 + kept.max_cuts


@pytest.mark.parametrize("rollouts", [2, 9])
def test_an_update_made_anew_leaves_no_trace(rollouts):
    """A faulty rollout is rewound, and the true one written over it."""
    story, other = (stories.tell(60, 3, 7, seed=seed) for seed in (0, 1))
    kept = stories.stored(story, 30, 4, rollouts, 7)
    right = stories.rollout(story, 4 * rollouts, 4, 1)
    wrong = stories.rollout(other, 4 * rollouts, 4, 1)
    begin = wrong.obs.at[0].set(right.obs[0])
    wrong = dataclasses.replace(wrong, obs=begin, first=right.first)
    faulty = ring.add(kept, wrong, wrong.action)
    back = faulty.rewound(jnp.bool_(True), kept)
    again = ring.add(back, right, right.action)
    direct = ring.add(kept, right, right.action)
    _, places = stories.places(direct)
    for n in (1, 3):
        one, two = (ring.transitions(x, places, n, 0.9) for x in (again, direct))
        jax.tree.map(np.testing.assert_array_equal, one, two)
    for name in ("position", "count", "cuts"):
        assert (
            getattr(faulty.rewound(jnp.bool_(False), kept), name)
            == getattr(faulty, name)
        ).all()


def test_nothing_is_learned_of_the_step_before_an_environment_starts_anew():
    """After a skipped update the next rollout begins another episode, unannounced."""
    story = stories.tell(20, 2, end=0.0)
    kept = stories.stored(story, 20, 4, 2)
    part = stories.rollout(story, 8, 4, 0)
    anew = part.obs.at[:, 0, 1].add(100)
    first = part.first.at[0].set([True, False])
    kept = ring.add(kept, dataclasses.replace(part, obs=anew, first=first), part.action)
    before = ring.Place(jnp.arange(2), jnp.array([7, 7]))
    found = ring.transitions(kept, before, 1, 0.9)
    assert found.weight.tolist() == [0, 1]
    two_before = ring.Place(jnp.arange(2), jnp.array([6, 6]))
    assert ring.transitions(kept, two_before, 1, 0.9).weight.tolist() == [1, 1]
    assert ring.transitions(kept, two_before, 2, 0.9).weight.tolist() == [0, 1]
    mask = ring.sequences(kept, two_before, 3).mask
    assert mask.T.tolist() == [[True, False, False], [True, True, True]]


def test_bytes_stay_bytes_and_are_stored_once():
    """84 x 84 x 4 bytes an observation, and 12 of action, reward and end."""
    space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    spec = EnvSpec("pixels", space, spaces.Discrete(4), 1000)
    kept = jax.eval_shape(lambda: ring.empty(spec, 10, 10_000, 1, jnp.int32(0)))
    assert kept.obs.dtype == jnp.uint8
    least = 10_000 * (84 * 84 * 4 + 12)
    assert least < ring.size_in_bytes(kept) < 1.01 * least


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((100, 8, 1), r"capacity 100 must divide by num_envs 8; nearest: \[96, 104\]"),
        ((8, 8, 2), r"capacity 8 must hold a rollout: .* = 8 \* 2"),
        ((0, 8, 1), r"capacity 0 must be a whole number of at least 1"),
        ((2**31 - 8, 8, 1), r"capacity \+ num_envs 2147483648 must be less than"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        ring.slots_of(*sizes)
