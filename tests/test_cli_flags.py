"""Numbers on the command line."""

from __future__ import annotations

import pytest

from jaxrl_par.cli import flags


@pytest.mark.parametrize(
    ("text", "number"),
    [("64", 64), ("1e5", 100_000), ("500_000", 500_000), ("2.0", 2), ("-3", -3)],
)
def test_whole_numbers_are_accepted_as_ints(text: str, number: int) -> None:
    parsed = flags.whole_number(text)
    assert parsed == number
    assert type(parsed) is int


@pytest.mark.parametrize("text", ["1.5", "1e5.5", "abc", "", "nan", "inf", "1e400"])
def test_other_numbers_are_no_ints(text: str) -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        flags.whole_number(text)


@pytest.mark.parametrize("text", ["1e-5", "0.00001", "1_0e-6"])
def test_floats(text: str) -> None:
    assert flags.finite_number(text) == 1e-5


@pytest.mark.parametrize("text", ["abc", "nan", "inf", "-inf", "1e400"])
def test_other_numbers_are_no_floats(text: str) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        flags.finite_number(text)
