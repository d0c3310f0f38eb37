"""What a deep-learning engineer learns the hard way about training loops, as Keras callbacks."""

from keras_tricks._tensor_report import TensorReport
from keras_tricks.best_checkpoints import BestCheckpoints
from keras_tricks.checkpoints import Checkpoint, Checkpoints
from keras_tricks.doctor import doctor
from keras_tricks.evaluate import evaluate
from keras_tricks.pad_batches import pad_batches
from keras_tricks.print_tensors import print_tensors
from keras_tricks.recommended import recommended
from keras_tricks.resume import Resume
from keras_tricks.step_budget import StepBudget
from keras_tricks.step_evaluation import StepEvaluation
from keras_tricks.tensor_printer import TensorPrinter

__version__ = "0.1.0"

__all__ = [
    "BestCheckpoints",
    "Checkpoint",
    "Checkpoints",
    "Resume",
    "StepBudget",
    "StepEvaluation",
    "TensorPrinter",
    "TensorReport",
    "__version__",
    "doctor",
    "evaluate",
    "pad_batches",
    "print_tensors",
    "recommended",
]
