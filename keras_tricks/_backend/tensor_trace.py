"""What one replay of a training step found, as plain values: what a diagnosis is drawn from."""

from __future__ import annotations

from dataclasses import dataclass, field

from keras_tricks._backend.tensor_rows import Relation, Row


@dataclass(frozen=True)
class Call:
    """One call of a layer or of an operation.

    Attributes:
        name: Its name; the second call's ends with `#2`.
        layer: Class of the layer or operation, such as `"Dense"`.
        row: Its output.
        activation: Name of its activation function, empty without one.
        inputs: Rows of its inputs.
        source: Python text of its `call`, empty for one of Keras's own.
        relation: Which inputs belong to what is not finite, where they are finite themselves.
        saturated: Share of the outputs at an end of the activation's range, 0 to 1.
        dead: Share of units that are zero for every example, 0 to 1.
        masked_rows: Examples whose steps are all masked.
        own: Whether the class is not Keras's.
        bad_weights: Paths of its weights that are not finite.
        composite: Whether it consists of other layers.
    """

    name: str
    layer: str
    row: Row
    activation: str = ""
    inputs: tuple[Row, ...] = ()
    source: str = ""
    relation: Relation | None = None
    saturated: float = 0.0
    dead: float = 0.0
    masked_rows: int = 0
    own: bool = False
    composite: bool = False
    bad_weights: tuple[str, ...] = ()


@dataclass(frozen=True)
class LossFact:
    """One compiled loss.

    Attributes:
        name: Name of the loss.
        kind: Class or function name in lower case without underscores, such as
            `"sparsecategoricalcrossentropy"`.
        from_logits: Whether it expects logits; None where it has no such choice.
        source: Python text of a loss of the user's own.
        weight: Its factor in the total.
        target: Smallest and largest target, None where that is not known.
        output: Smallest and largest output.
        classes: Size of the output's last axis.
        sums_to_one: Whether the outputs are shares that add up to one.
        activation: Activation of the output's layer, empty where it is not known.
    """

    name: str
    kind: str
    from_logits: bool | None = None
    source: str = ""
    weight: float | None = None
    target: tuple[float, float] | None = None
    output: tuple[float, float] | None = None
    classes: int = 0
    sums_to_one: bool = False
    activation: str = ""


@dataclass
class Trace:
    """A replayed step.

    Attributes:
        rows: All tensors, in the order of the forward pass.
        calls: The calls, in the order in which they ended.
        bad_gradients: Names of calls whose output received a gradient that is not finite.
        backward: Names of calls that received a gradient at all, in the order they did.
        losses: The compiled losses.
        places: For an input, target or sample weight that is not finite, its name and the index
            of the first such value.
        constant: Names of inputs and targets whose examples are all the same.
        learning_rate: The optimizer's, None without one.
        frozen: Layers with weights none of which is trained.
        trainable: How many layers have weights that are trained.
        updates_finite: Whether the update of every weight would be finite.
        slots: Optimizer variables that are not finite.
        clips_value: Whether gradients are clipped by value.
        regularizers: Regularisers and added losses whose value is not finite.
        metrics: Metrics whose value is not finite after the step.
        weights_gone: Whether the weights are those after the bad step, without a guard.
        notes: What the replay could not do.
        error: Why it ended early, empty if it did not.
    """

    rows: list[Row] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    bad_gradients: list[str] = field(default_factory=list)
    backward: list[str] = field(default_factory=list)
    losses: list[LossFact] = field(default_factory=list)
    places: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    constant: list[str] = field(default_factory=list)
    learning_rate: float | None = None
    frozen: list[str] = field(default_factory=list)
    trainable: int = 0
    updates_finite: bool = True
    slots: list[str] = field(default_factory=list)
    clips_value: bool = False
    regularizers: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    weights_gone: bool = False
    notes: list[str] = field(default_factory=list)
    error: str = ""

    def of_kind(self, kind: str) -> list[Row]:
        """The rows of one kind."""
        return [row for row in self.rows if row.kind == kind]

    @property
    def loss(self) -> Row | None:
        """The row of the total loss."""
        return next((row for row in self.rows if row.kind == "loss" and row.name == "loss"), None)
