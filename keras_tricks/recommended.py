"""`kt.recommended`: the callbacks that every training run should have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras

from keras_tricks import _backend
from keras_tricks._arguments import checks_keywords
from keras_tricks._backend.nodes import ListNode
from keras_tricks._run_directory import claim, following, newest_with
from keras_tricks.best_checkpoints import BestCheckpoints
from keras_tricks.closing_block import ClosingBlock
from keras_tricks.resume import Resume
from keras_tricks.step_evaluation import StepEvaluation

RESUME = "resume"
RESUME_STEPS = 500

NO_DATA = (
    "Nothing was evaluated exactly. Pass `validation_data` to `kt.recommended` instead of to `fit`."
)


class Recommended(ListNode[keras.callbacks.Callback]):
    """The recommended callbacks: a list whose members have names.

    Attributes:
        directory: Directory of this run, such as `run/001`.
        evaluation: The `StepEvaluation`, None without validation data.
        checkpoints: The `BestCheckpoints`; without validation data it goes by what `fit` validates.
        closing_block: What prints the findings and writes `report.md`.
        resume: The `Resume`, None unless asked for.
    """

    # `fit` asks each entry of its list, also one that is a list, whether its hooks may run in
    # threads. Those of our callbacks may: `callbacks=[kt.recommended("run"), another]` works.
    async_safe = True

    def __init__(
        self,
        directory: Path,
        evaluation: StepEvaluation | None,
        checkpoints: BestCheckpoints,
        resume: Resume | None = None,
    ) -> None:
        self.directory = directory
        self.evaluation = evaluation
        self.checkpoints = checkpoints
        self.resume = resume
        self.closing_block = ClosingBlock(directory, advice=() if evaluation else (NO_DATA,))
        members = (evaluation, checkpoints, resume, self.closing_block)
        super().__init__(member for member in members if member is not None)


@checks_keywords
def recommended(
    run_dir: str | os.PathLike[str],
    validation_data: Any = None,
    *,
    every_steps: int | None = None,
    monitor: str = "val_loss",
    keep: int = 5,
    resume: bool = False,
) -> Recommended:
    """Returns the callbacks that every training run should have.

    The directory of the run is made at once, the next in number: `run/001`, `run/002`. Several
    processes never get the same. It receives

    - `train/` and `validation/`: TensorBoard events, the step on the x axis. Both curves of a
      value, `evaluation_loss_vs_iterations`, stand in one chart;
    - `checkpoints/`: the `keep` best and the newest, and `checkpoints.json`. Of a model whose
      configuration cannot be saved, weights and optimizer alone;
    - `report.md`: the block that is also printed at the end of `fit`, one sentence for each
      finding.

    On several hosts, only the chief makes a directory and writes.

    Args:
        run_dir: Directory of all runs, on a local disk.
        validation_data: What `fit(validation_data=...)` takes, readable more than once. It is
            evaluated exactly, so leave it out of `fit`. None: nothing is evaluated.
        every_steps: Evaluate at the first chance at or after each multiple of this step; None
            evaluates at the end of each epoch.
        monitor: Name of the value that tells which checkpoints are best.
        keep: How many of the best to keep.
        resume: Whether to go on in the newest directory, where an earlier start was interrupted:
            see `Resume`, which stores at each multiple of `every_steps`, or of 500 without it. One
            that has finished trains nothing more.

    Returns:
        A list with the attributes `directory`, `evaluation`, `checkpoints`, `closing_block` and
        `resume`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If a value is out of range, or the data cannot be used.
        OSError: If no directory can be made in `run_dir`.

    Example:
        >>> validation_data = np.ones((8, 2)), np.zeros((8, 1))
        >>> callbacks = keras_tricks.recommended("run", validation_data)
        >>> callbacks.evaluation.history
        {'step': []}
    """
    _check(validation_data, every_steps)
    checkpoints = BestCheckpoints("checkpoints", monitor=monitor, keep=keep)
    checkpoints.weights_where_needed = True
    evaluation = None
    if validation_data is not None:
        evaluation = StepEvaluation(validation_data, every_steps=every_steps)
    earlier = newest_with(Path(run_dir).absolute(), RESUME) if resume else None
    if earlier is not None:
        directory = earlier
    elif _backend.is_chief():
        directory = claim(run_dir, name="run_dir")
    else:
        directory = following(Path(run_dir).absolute())
    if evaluation is not None:
        evaluation.log_dir = directory
    checkpoints.directory = directory / "checkpoints"
    going_on = None
    if resume:
        going_on = Resume(directory / RESUME, every_steps=every_steps or RESUME_STEPS)
    return Recommended(directory, evaluation, checkpoints, going_on)


def _check(validation_data: Any, every_steps: Any) -> None:
    """Raises at arguments that do not fit each other, before anything is made."""
    if every_steps is not None and validation_data is None:
        raise ValueError(
            f"`every_steps` needs `validation_data`, got every_steps={every_steps!r} and None. "
            "Pass the data here instead of to `fit`."
        )
