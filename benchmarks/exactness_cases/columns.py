"""The columns of the table: each framework with its precision and its reference training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from exactness_cases.cases import Case


class Job(NamedTuple):
    """One training to run.

    Attributes:
      training: Name in the TRAININGS of the framework's module.
      case: Index of the case.
      placement: `local`, or the number of replicas or workers.
    """

    training: str
    case: int
    placement: str


@dataclass(frozen=True)
class Column:
    """One method of accumulation.

    Attributes:
      title: Title of the column.
      framework: Module of this package that runs the training. For the table of Keras 3, a period
        and the backend follow, as in `with_keras3.jax`.
      training: Name in the TRAININGS of that module.
      dtype: Type of the model.
      legacy: Training to use instead if the first crashes, compared with `legacy large batch`.
      reference: Training that the weights are compared with.
    """

    title: str
    framework: str
    training: str
    dtype: str = "float32"
    legacy: str = ""
    reference: str = "large batch"

    def references(self, case: Case) -> list[str]:
        """Return the names of the trainings on one device that this column is compared with."""
        names = [self.reference]
        names += ["legacy large batch"] if self.legacy else []
        return names + (["float32 large batch"] if self.controls and case.mixed else [])

    @property
    def controls(self) -> bool:
        """Return whether the column also measures the rounding of mixed precision."""
        return self.framework == "with_bertaccum"

    def jobs(self, cases: list[Case]) -> list[Job]:
        jobs = []
        for number, case in enumerate(cases):
            if case.allows(self.dtype):
                jobs += [Job(name, number, "local") for name in self.references(case)]
                own = [self.training, self.legacy]
                jobs += [Job(name, number, case.placement) for name in own if name]
        return jobs


OWN = [
    Column("bertaccum optimizer, float64", "with_bertaccum", "optimizer", "float64"),
    Column("bertaccum optimizer, float32", "with_bertaccum", "optimizer"),
    Column("bertaccum model, float64", "with_bertaccum", "model", "float64"),
    Column("bertaccum model, float32", "with_bertaccum", "model"),
]
PEERS = [
    Column("Keras 3.15.1", "with_keras", "optimizer"),
    Column(
        "gradient-accumulator 0.5.2 optimizer",
        "with_gradient_accumulator",
        "optimizer",
        legacy="legacy optimizer",
    ),
    Column("gradient-accumulator 0.5.2 model", "with_gradient_accumulator", "model"),
    Column("Hugging Face Trainer (transformers 5.24.0)", "with_trainer", "trainer"),
    Column(
        "Hugging Face Trainer (transformers 5.24.0), label smoothing",
        "with_trainer",
        "smoothed trainer",
        reference="smoothed large batch",
    ),
    Column("Hugging Face Accelerate 1.15.0", "with_accelerate", "accelerate"),
    Column(
        "Hugging Face Accelerate 1.15.0, unequal sizes", "with_accelerate", "accelerate windows"
    ),
]
KERAS_3 = [
    column
    for name, backend in (("TensorFlow", "tensorflow"), ("JAX", "jax"), ("PyTorch", "torch"))
    for column in (
        Column(f"bertaccum, {name}, float64", f"with_keras3.{backend}", "model", "float64"),
        Column(f"bertaccum, {name}, float32", f"with_keras3.{backend}", "model"),
        Column(f"Keras 3.15.1, {name}", f"with_keras.{backend}", "optimizer"),
    )
]
# Names of the environments, whose requirements are in ../peers.
ENVIRONMENTS = {
    "with_keras": "keras",
    **{f"{module}.jax": "jax" for module in ("with_keras", "with_keras3")},
    **{f"{module}.torch": "huggingface" for module in ("with_keras", "with_keras3")},
    "with_gradient_accumulator": "gradient-accumulator",
    "with_trainer": "huggingface",
    "with_accelerate": "huggingface",
}
# Environments whose requirements list every package. PyTorch's packages depend on the machine.
COMPLETE = {"keras", "gradient-accumulator"}
