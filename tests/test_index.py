"""What is best, what to keep, and an index that is read whatever happened to it: by tables."""

import json
import math

import pytest

from keras_tricks._index import (
    Index,
    Record,
    Rule,
    added,
    dumps,
    kept,
    loads,
    pruned,
    ranked,
)

NAN, INF = math.nan, math.inf


def records(*values, **options):
    """Evaluations at steps 10, 20, … with these values of `val_loss`, each with a checkpoint."""
    return [
        Record(
            step=10 * (place + 1),
            epoch=0,
            metrics={"val_loss": value},
            file=f"step-{10 * (place + 1):08d}.keras",
            **options,
        )
        for place, value in enumerate(values)
    ]


def rule(keep=1, keep_last=1, mode="min"):
    return Rule("val_loss", mode, keep, keep_last)


def steps(found):
    return [record.step for record in found]


@pytest.mark.parametrize(
    ("values", "keep", "keep_last", "mode", "expected"),
    [
        ([], 2, 1, "min", []),
        ([3.0], 2, 1, "min", [10]),
        ([3.0, 1.0, 2.0], 1, 0, "min", [20]),
        ([3.0, 1.0, 2.0], 1, 1, "min", [20, 30]),
        ([3.0, 1.0, 2.0], 2, 1, "min", [20, 30]),
        ([3.0, 1.0, 2.0], 1, 2, "min", [20, 30]),
        ([3.0, 1.0, 2.0], 5, 5, "min", [10, 20, 30]),
        ([3.0, 1.0, 2.0], 1, 0, "max", [10]),
        ([1.0, 1.0, 1.0], 1, 0, "min", [10]),
        ([1.0, 1.0, 1.0], 2, 0, "max", [10, 20]),
        ([NAN, 2.0, 1.0], 1, 0, "min", [30]),
        ([NAN, 2.0, 1.0], 1, 0, "max", [20]),
        ([NAN], 1, 0, "min", []),
        ([NAN], 1, 1, "min", [10]),
        ([1.0, NAN], 1, 1, "min", [10, 20]),
        ([INF, -INF, 2.0], 1, 0, "min", [30]),
        ([INF, -INF, 2.0], 1, 0, "max", [30]),
        ([2.0, -0.0, 0.0], 1, 0, "min", [20]),
    ],
)
def test_the_union_of_the_best_and_the_newest_stays(values, keep, keep_last, mode, expected):
    found = records(*values)
    stays = kept(found, rule(keep, keep_last, mode))
    assert [r.step for r, stay in zip(found, stays, strict=True) if stay] == expected


@pytest.mark.parametrize(
    ("values", "mode", "expected"),
    [
        ([3.0, 1.0, 2.0], "min", [20, 30, 10]),
        ([3.0, 1.0, 2.0], "max", [10, 30, 20]),
        ([2.0, NAN, 1.0, INF, 2.0], "min", [30, 10, 50]),
        ([[1.0, 2.0], "high", True, None, 4], "min", [50]),
    ],
)
def test_only_one_finite_number_ranks(values, mode, expected):
    assert steps(ranked(records(*values), "val_loss", mode)) == expected


def test_an_evaluation_without_checkpoint_takes_no_place():
    one, two, three = records(1.0, 2.0, 3.0)
    stays = kept([one.without_file(), two, three.without_file()], rule(1, 1))
    assert stays == [False, True, False]


def test_keras_own_validation_is_never_ranked_with_step_evaluations():
    fit = records(0.1, 0.2, by_fit=True)
    ours = [Record(50, 0, {"val_loss": 5.0}, file="step-00000050.keras")]
    assert kept([*fit, *ours], rule(1, 0)) == [True, True, True]
    index = Index(rule=rule(1, 0), records=(*fit, *ours))
    assert steps(index.ranking()) == [50]
    assert steps(index.best_first()) == [50, 20, 10]


def test_checkpoints_that_lack_the_metric_are_not_judged_by_it():
    other = Record(10, 0, {"val_auc": 0.5}, file="step-00000010.keras")
    stays = kept([other, *records(3.0, 1.0)[1:], *records(3.0, 1.0, 2.0)[2:]], rule(1, 0))
    assert stays == [True, True, False]


def test_two_evaluations_at_one_step_join():
    first = records(1.0)[0]
    second = Record(10, 0, {"test_loss": 4.0})
    (joined,) = added(added(Index(), first), second).records
    assert joined.metrics == {"val_loss": 1.0, "test_loss": 4.0}
    assert joined.file == first.file


def test_means_of_the_training_over_other_windows_are_no_contradiction():
    first = Record(10, 0, {"val_loss": 1.0}, training={"loss": 2.0})
    second = Record(10, 0, {"test_loss": 4.0}, training={"loss": 3.0})
    (joined,) = added(added(Index(), first), second).records
    assert joined.values == {"loss": 2.0, "val_loss": 1.0, "test_loss": 4.0}


def test_the_checkpoint_may_come_with_the_second():
    second = Record(10, 0, {"test_loss": 4.0})
    (joined,) = added(added(Index(), second), records(1.0)[0]).records
    assert joined == Record(10, 0, {"val_loss": 1.0, "test_loss": 4.0}, file="step-00000010.keras")


def test_the_same_not_a_number_twice_is_no_contradiction():
    first, again = records(NAN)[0], Record(10, 0, {"val_loss": NAN, "val_mae": 1.0})
    assert len(added(added(Index(), first), again).records) == 1


def test_keras_own_validation_stays_apart_at_the_same_step():
    ours, fit = records(1.0)[0], Record(10, 0, {"val_loss": 1.5}, by_fit=True)
    also = Record(10, 0, {"test_loss": 2.0})
    index = added(added(added(Index(), ours), fit), also)
    assert [dict(r.metrics) for r in index.records] == [
        {"val_loss": 1.0, "test_loss": 2.0},
        {"val_loss": 1.5},
    ]


def test_a_checkpoint_of_a_changed_model_takes_the_place_of_the_first():
    first = records(1.0)[0]
    second = Record(10, 0, {"val_loss": 2.0}, file="step-00000010-2.keras")
    index = added(added(Index(rule=rule()), first), second)
    assert [record.file for record in index.records] == [None, "step-00000010-2.keras"]
    assert index.deleting == ("step-00000010.keras",)


def test_what_is_dropped_is_listed_for_deletion():
    index = Index(rule=rule(1, 1), records=tuple(records(1.0, 3.0, 2.0)))
    after = pruned(index)
    assert steps(after.stored) == [10, 30]
    assert after.deleting == ("step-00000020.keras",)
    assert len(after.records) == 3


FULL = Index(
    rule=rule(5, 2, "max"),
    run="0a1b2c",
    directions={"val_loss": "min", "val_auc": "max", "val_mine": None},
    records=(
        Record(
            10,
            0,
            {"val_loss": 0.1 + 0.2, "val_auc": NAN, "val_counts": [1.0, INF]},
            training={"loss": NAN},
        ),
        Record(20, 1, {"val_loss": -INF}, True, "step-00000020.keras", 123, "0badcafe"),
        Record(30, 1, {"val_loss": 1e-300}, note='not stored: "dense/kernel" is not finite'),
    ),
    deleting=("step-00000010.keras",),
)


def test_the_index_is_read_as_it_was_written():
    text = dumps(FULL)
    again, complaints = loads(text)
    assert complaints == []
    assert dumps(again) == text
    assert again.records[1:] == FULL.records[1:]
    assert again.records[0].metrics["val_loss"] == 0.1 + 0.2
    assert math.isnan(again.records[0].metrics["val_auc"])


def test_the_index_is_json_for_everyone():
    def refuse(constant):
        raise AssertionError(constant)

    data = json.loads(dumps(FULL), parse_constant=refuse)
    assert data["evaluations"][1]["metrics"] == {"val_loss": "-Infinity"}
    assert data["directions"] == {"val_loss": "min", "val_auc": "max", "val_mine": None}


@pytest.mark.parametrize("length", range(0, len(dumps(FULL)) - 3, 7))
def test_an_index_cut_short_loses_only_what_was_cut(length):
    text = dumps(FULL)[:length]
    whole = sum(line in text for line in dumps(FULL).splitlines() if '{"step"' in line)
    again, complaints = loads(text)
    assert len(again.records) >= whole
    assert len(complaints) == 1


@pytest.mark.parametrize(
    ("old", "new", "complaint", "count"),
    [
        ('"step": 20', '"step": "x"', "`step` must be a whole number from 0, got 'x'", 2),
        ('"step": 20', '"step": -1', "`step` must be a whole number from 0, got -1", 2),
        ('"metrics": {"val_loss": 1e-300}', '"metrics": 3', "`metrics` must be an object", 2),
        ('"step-00000020.keras"', '"../../step-00000020.keras"', "is refused", 3),
        ('"step-00000020.keras"', '"/etc/passwd"', "is refused", 3),
        ('"step-00000020.keras"', '"notes.txt"', "is refused", 3),
        ('"step-00000020.keras"', "7", "is refused", 3),
        ('"step": 20,', '"step": 20', "is damaged", 2),
    ],
)
def test_an_index_edited_by_hand_loses_only_the_faulty_line(old, new, complaint, count):
    text = dumps(FULL)
    assert text.count(old) == 1
    again, (sentence,) = loads(text.replace(old, new))
    assert complaint in sentence
    assert len(again.records) == count
    stored = "metrics" in old  # the fault is in the line of step 30, the checkpoint in that of 20
    assert steps(again.stored) == ([20] if stored else [])
    assert again.rule == FULL.rule


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "\x00" * 50, '{"evaluations": 3}'])
def test_what_is_no_index_reads_as_an_empty_one(text):
    index, complaints = loads(text)
    assert index == Index()
    assert len(complaints) == (text != '{"evaluations": 3}')


def test_another_layout_of_the_same_json_is_read():
    again, complaints = loads(json.dumps(json.loads(dumps(FULL)), indent=4))
    assert dumps(again) == dumps(FULL)
    assert complaints == []
    broken = json.dumps(json.loads(dumps(FULL)), indent=4)[:-30]
    assert len(loads(broken)[0].records) == 2


def test_a_later_format_is_not_guessed_at():
    with pytest.raises(ValueError, match="format is 2, written by a later version"):
        loads(dumps(FULL).replace('"format": 1', '"format": 2'))
