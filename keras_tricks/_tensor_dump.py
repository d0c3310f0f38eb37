"""The files of a report: texts, batch, model, and a script that reproduces it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tricks import _backend
from keras_tricks._backend import custom, keras_private
from keras_tricks._backend.recording import host
from keras_tricks._backend.replay import replay
from keras_tricks._files import write_atomically
from keras_tricks._tensor_fault import explain
from keras_tricks._tensor_look import fault_report, plain_report
from keras_tricks._tensor_report import TensorReport

MODEL, WEIGHTS, BATCH, CUSTOM = "model.keras", "model.weights.h5", "batch.npz", "custom.py"
PARTS = ("x", "y", "sample_weight")

SCRIPT = '''"""Reproduces the report of step {step} alone: `python replay.py`."""

import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "{backend}")

from keras_tricks._tensor_dump import reproduce

# {hint}
model = None

print(reproduce(Path(__file__).parent, model))
'''
WHOLE = "The model is read from model.keras; put another in its place to try a remedy."
PARTLY = "The model could not be saved whole ({reason}): build it here, as in your script."


def folder_name(step: int) -> str:
    """Name of a report's folder."""
    return f"step-{step:08d}"


def dump(directory: Path, report: TensorReport, model: keras.Model, data: Any) -> Path:
    """Writes the files of a report.

    Args:
        directory: Receives a folder for the step.
        report: The report.
        model: The model with the weights from before the step.
        data: `(x, y, sample_weight)`, None where nobody has the batch.

    Returns:
        The folder.
    """
    folder = directory / folder_name(report.step)
    folder.mkdir(parents=True, exist_ok=True)
    facts = {**report.as_dict(), "backend": _backend.NAME}
    hint = _write_model(folder, model)
    if data is not None:
        facts["batch"] = _write_batch(folder, model, data)
        script = SCRIPT.format(step=report.step, backend=_backend.NAME, hint=hint)
        _write_text(folder / "replay.py", script)
    _write_text(folder / "report.txt", f"{report.text(len(report.rows))}\n")
    _write_text(folder / "report.json", json.dumps(facts, indent=1))
    return folder


def reproduce(folder: Path, model: keras.Model | None = None) -> TensorReport:
    """The report of a folder, from its batch and its model alone.

    Args:
        folder: What `dump` returned.
        model: A compiled model of the same layers, where another shall be tried or none was saved.
    """
    facts = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    if model is None:
        model = _read_model(folder)
    elif (folder / WEIGHTS).exists():
        model.load_weights(folder / WEIGHTS)
    with np.load(folder / BATCH, allow_pickle=False) as arrays:
        data = _unpacked(facts["batch"], arrays)
        _backend.build(model, data)
        for number, state in enumerate(keras_private.seed_states(model)):
            if f"seed{number}" in arrays:
                state.assign(arrays[f"seed{number}"])
        trace = replay(model, data, metrics=True)
    if facts["producer"] is None:
        return plain_report(facts["step"], facts["reason"], trace, None)
    return fault_report(facts["step"], trace, explain(trace), None, [])


def _write_model(folder: Path, model: keras.Model) -> str:
    """Saves the model, whole where that can be; what the script says about it."""
    text = custom.sources(model)
    if text:
        _write_text(folder / CUSTOM, text)
    try:
        write_atomically(folder / MODEL, model.save)
        return WHOLE
    except (NotImplementedError, TypeError, ValueError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0][:120]
    write_atomically(folder / WEIGHTS, model.save_weights)
    return PARTLY.format(reason=reason)


def _read_model(folder: Path) -> keras.Model:
    found: dict[str, Any] = {}
    if (folder / CUSTOM).exists():
        names = runpy.run_path(str(folder / CUSTOM))
        found = {name: value for name, value in names.items() if callable(value)}
    model: keras.Model = keras.saving.load_model(
        folder / MODEL, custom_objects=found, safe_mode=False
    )
    return model


def _write_batch(folder: Path, model: keras.Model, data: Any) -> dict[str, Any]:
    """Writes every array of a batch; its structure, with the arrays' names in their places."""
    arrays: dict[str, np.ndarray] = {}
    structure = {}
    for part, values in zip(PARTS, data, strict=True):

        def name(leaf: Any, part: str = part) -> str | None:
            if leaf is None:
                return None
            key = f"{part}{len(arrays)}"
            arrays[key] = host(leaf) if hasattr(leaf, "dtype") else np.asarray(leaf)
            return key

        structure[part] = keras.tree.map_structure(name, values)
    for number, state in enumerate(keras_private.seed_states(model)):
        arrays[f"seed{number}"] = host(_backend.read(state))
    write_atomically(folder / BATCH, lambda path: np.savez(path, **arrays))  # type: ignore[arg-type]
    return structure


def _unpacked(structure: dict[str, Any], arrays: Any) -> Any:
    def array(key: str | None) -> Any:
        return None if key is None else arrays[key]

    return tuple(keras.tree.map_structure(array, structure[part]) for part in PARTS)


def _write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda target: target.write_text(text, encoding="utf-8"))
