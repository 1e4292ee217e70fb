"""README.md's Python runs as it stands, with fewer steps."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_readme_has_its_examples():
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_example_runs(block):
    small = re.sub(r"total_steps=[\d_]+", "total_steps=256", block)
    names = {}
    exec(small, names)
    assert names["run"].env_steps >= 256


def test_readme_names_files_that_exist():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    root = Path(__file__).parents[1]
    missing = [link for link in links if not (root / link).exists()]
    assert not missing
