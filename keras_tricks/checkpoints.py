"""`kt.Checkpoints`: the checkpoints of an earlier run."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import keras

from keras_tricks._arguments import checks_keywords
from keras_tricks._checkpoint_files import read
from keras_tricks._run import remember_steps
from keras_tricks._shelf import Checkpoint, Mode, Shelf

__all__ = ["Checkpoint", "Checkpoints"]


class Checkpoints:
    """The checkpoints that `BestCheckpoints` kept, read from their directory.

    Nothing in it is changed. A file that is gone or damaged costs itself, with a warning.

    Args:
        directory: The directory that was given to `BestCheckpoints`. It is read once, now.

    Raises:
        OSError: If there is no such directory.
        ValueError: If it was written by a later version of this package.

    Example:
        >>> import tempfile
        >>> keras_tricks.Checkpoints(tempfile.mkdtemp()).checkpoints
        []
    """

    @checks_keywords
    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.index, messages = read(self.directory)
        for message in messages:
            warnings.warn(f"{self.directory}: {message}.", UserWarning, stacklevel=3)
        self._shelf = Shelf(self.directory, self.index)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The kept ones: by their value, best first, then those whose value was not finite."""
        return self._shelf.checkpoints

    @property
    def best(self) -> Checkpoint | None:
        """The one with the best value, None if there is none."""
        return self._shelf.best

    @property
    def last(self) -> Checkpoint | None:
        """The newest one, None if there is none."""
        return self._shelf.last

    def select(
        self,
        *,
        monitor: str | None = None,
        mode: Mode = "auto",
        between: tuple[int, int] | None = None,
    ) -> Checkpoint:
        """The best of the kept ones by any recorded value, also one that nobody monitored.

        Args:
            monitor: Name of the value; by default the one that was monitored.
            mode: "min" or "max"; "auto" is what was recorded with the value.
            between: First and last step, both included; None for all.

        Raises:
            TypeError: If `between` is not a pair of steps.
            ValueError: If no kept checkpoint has that value or lies in that range, or its direction
                is not known.
        """
        return self._shelf.select(monitor, mode, between)

    def restore(self, model: keras.Model | None = None, *, step: int | None = None) -> keras.Model:
        """Loads a checkpoint: weights, optimizer state and seed generators.

        Args:
            model: The model to load it into; None makes one from the file, in Keras's safe mode.
            step: Its step; None for the best that can be read.

        Returns:
            The model.

        Raises:
            FileNotFoundError: If no checkpoint can be read.
            ValueError: If there is none of that step, it is damaged, does not fit the model, or has
                weights alone and `model` is None.
        """
        model, restored = self._shelf.restore(model, step)
        remember_steps(model, restored)
        return model

    def average(self, top: int = 3, *, model: keras.Model | None = None) -> keras.Model:
        """Assigns the mean of the best checkpoints' weights; averages of layers are among them.

        Args:
            top: How many.
            model: The model whose weights are assigned; its optimizer and seeds stay as they are.
                None makes one from the best file.

        Returns:
            The model.

        Raises:
            ValueError: If `top` is not from 1 to the number of ranked checkpoints.
        """
        return self._shelf.average(top, model)
