# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # First steps
#
# Train an agent, look at what it learned, then bring an environment and a network of
# your own. All of it runs on a laptop in about a minute.
#
# To open this file as a notebook: `jupytext --to notebook first_steps.py`.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxrl_par as jp

jp.use_cpu_cores()  # each core is a device; before anything else of JAX
print(jp.__version__, jax.devices())

# %% [markdown]
# ## Train
#
# One *step* is one environment step, counted over all environments. Settings that are
# known to learn come as presets.

# %%
preset = jp.preset("ppo", "CartPole-v1")
env = jp.make("CartPole-v1")
run = jp.train(preset.algorithm, env, **preset.settings, seed=0)
print(f"{run.env_steps:,} steps in {run.seconds:.1f} s", end=", ")
print(f"after {run.compile_seconds:.1f} s of compiling")

# %% [markdown]
# ## Look
#
# `run.metrics` is a dict of NumPy arrays, one value for each update. Where no episode
# ended in an update, its return is NaN. `run.evaluation` holds greedy episodes that
# were played after the last update.

# %%
print(sorted(run.metrics))
print("greedy return", run.evaluation.mean_return)

# %%
figure, panels = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for panel, name in zip(panels, ("episode_return", "entropy"), strict=True):
    panel.plot(run.metrics["env_steps"], run.metrics[name])
    panel.set(xlabel="environment steps", ylabel=name)
plt.show()

# %% [markdown]
# ## Use the policy
#
# `run.policy` takes one observation, or a batch of them, and gives the greedy action.

# %%
print("one:", run.policy([0.0, 0.0, 0.1, 0.0]))
print("a batch:", run.policy(jnp.zeros((5, 4))))

# %% [markdown]
# The environments are pure functions, so an episode is a short loop.

# %%
step = jax.jit(env.step)
key = jax.random.key(1)
state, obs = env.reset(key)
angles = []
for _ in range(200):
    state, result = step(key, state, run.policy(obs))
    obs = result.obs
    angles.append(float(obs[2]))
    if result.terminated:
        break
plt.figure(figsize=(9, 2.5), layout="constrained")
plt.plot(angles)
plt.gca().set(xlabel="step", ylabel="pole's angle, rad")
plt.show()

# %% [markdown]
# ## An environment of your own
#
# Two pure functions and a `spec`. `step` gives the true successor; resets, time limits
# and thousands of copies are not its business. `check_env` says what is wrong with it.


# %%
@jp.pytree
class Reach:
    """Walk along a line to a goal near 0."""

    speed: float = 0.2

    @property
    def spec(self):
        line = jp.Box(-1.0, 1.0, (1,))
        return jp.EnvSpec("Reach", line, jp.Discrete(3), max_steps=20)

    def reset(self, key):
        x = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
        return x, x

    def step(self, key, x, action):
        x = jnp.clip(x + self.speed * (action - 1), -1.0, 1.0)
        return x, jp.StepResult(x, -jnp.abs(x[0]), terminated=jnp.abs(x[0]) < 0.1)


jp.check_env(Reach())
reach = jp.train(jp.PPO(learning_rate=1e-3), Reach(), num_envs=64, total_steps=100_000)
print("greedy return", reach.evaluation.mean_return)

# %% [markdown]
# Numbers such as `speed` are leaves of a pytree: a different one for every environment
# is one more argument (domain randomisation).

# %%
speeds = jnp.linspace(0.1, 0.4, 64)
many = jp.Instances.of(Reach(), 64, speed=speeds)
varied = jp.train(jp.PPO(learning_rate=1e-3), many, num_envs=64, total_steps=100_000)
print("greedy return", varied.evaluation.mean_return)

# %% [markdown]
# ## A network of your own
#
# An `(init, apply)` pair: `init(key)` gives the parameters; `apply(params, obs)` gives
# the policy's outputs (here logits) and the values of a batch of observations.


# %%
def init(key):
    keys = jax.random.split(key, 3)
    shapes = {"hidden": (1, 32), "logits": (32, 3), "value": (32, 1)}
    return {
        name: jax.random.normal(k, shape) / jnp.sqrt(shape[0])
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def apply(params, obs):
    hidden = jnp.tanh(obs @ params["hidden"])
    return hidden @ params["logits"], (hidden @ params["value"])[:, 0]


own = jp.PPO(network=(init, apply), learning_rate=1e-3)
run = jp.train(own, Reach(), num_envs=64, total_steps=100_000)
print("greedy return", run.evaluation.mean_return)

# %% [markdown]
# ## Keep it
#
# `out=` writes a run directory, and `load` gives the same object back.

# %%
import tempfile  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    saved = jp.train(
        preset.algorithm,
        env,
        num_envs=preset.settings["num_envs"],
        total_steps=10_000,
        out=f"{folder}/mine",
    )
    again = jp.load(f"{folder}/mine")
print((again.policy(jnp.ones((3, 4))) == saved.policy(jnp.ones((3, 4)))).all())
