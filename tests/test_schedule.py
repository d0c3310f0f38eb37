"""When a trick is due."""

import numpy as np
import pytest

from keras_tricks._schedule import check_every, crossed, parse_at_steps


@pytest.mark.parametrize("every", [1, 3, 4, 7])
@pytest.mark.parametrize("stride", [1, 2, 3, 5, 16])
def test_crossed_says_yes_wherever_a_multiple_lies_in_between(every, stride):
    looks = range(0, 60, stride)
    found = [crossed(step, step + stride, every) for step in looks]
    assert found == [
        any(number % every == 0 for number in range(step + 1, step + stride + 1)) for step in looks
    ]


def test_crossed_is_no_without_a_step():
    assert not crossed(6, 6, 3)


@pytest.mark.parametrize("value", [1, 7, np.int64(7), np.uint8(7)])
def test_check_every_takes_whole_numbers(value):
    assert check_every("every_steps", value) == int(value)
    assert type(check_every("every_steps", value)) is int


@pytest.mark.parametrize("value", [2.5, 2.0, "2", None, True, [2], np.array([2, 3]), float("nan")])
def test_check_every_refuses_what_is_no_whole_number(value):
    with pytest.raises(TypeError, match=r"`batch_size` must be a whole number .* Pass"):
        check_every("batch_size", value)


@pytest.mark.parametrize("value", [0, -1, np.int64(0)])
def test_check_every_refuses_what_is_below_one(value):
    with pytest.raises(ValueError, match=r"`steps` must be at least 1, got .* Pass `steps=1`"):
        check_every("steps", value)


def test_check_every_proposes_the_whole_number_meant():
    with pytest.raises(TypeError, match=r"got 2\.5\. Pass `every_steps=2`"):
        check_every("every_steps", 2.5)


@pytest.mark.parametrize(
    ("value", "spans"),
    [
        (5, ((5, 5),)),
        (0, ((0, 0),)),
        ((5, 8), ((5, 8),)),
        ([1, 5, (100, 103)], ((1, 1), (5, 5), (100, 103))),
        ([(100, 103), 5, 1, 5], ((1, 1), (5, 5), (100, 103))),
        ([(4, 8), 6, (8, 9), 10], ((4, 9), (10, 10))),
        ([(1, 9), (2, 3)], ((1, 9),)),
        (np.int32(3), ((3, 3),)),
        ((), ()),
        ([], ()),
    ],
)
def test_at_steps_is_read(value, spans):
    assert parse_at_steps(value) == spans


@pytest.mark.parametrize("value", [2.5, "5", None, True, (1, 2, 3), [1, [2, 3]], [(1, 2.5)]])
def test_at_steps_of_another_form_is_refused(value):
    with pytest.raises(TypeError, match=r"`at_steps` must be .* Pass for example"):
        parse_at_steps(value)


@pytest.mark.parametrize("value", [-1, [3, -2], (-1, 4), (8, 5)])
def test_at_steps_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match=r"`at_steps` must not .* Pass `at_steps="):
        parse_at_steps(value)
