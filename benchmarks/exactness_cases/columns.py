"""The table's columns: which framework, in which precision, compared with what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from exactness_cases.cases import Case


class Job(NamedTuple):
    """One training: by what, of which case, on how many replicas or workers."""

    training: str
    case: int
    placement: str


@dataclass(frozen=True)
class Column:
    """One way to accumulate.

    Attributes:
      title: of the table's column.
      framework: the module of this package that trains.
      training: its name in that module's TRAININGS.
      dtype: of the model.
      reference: the training that its differences are to.
      legacy: the training to turn to where the first crashes; its reference is `legacy big batch`.
    """

    title: str
    framework: str
    training: str
    dtype: str = "float32"
    legacy: str = ""
    reference: str = "big batch"

    def references(self, case: Case) -> list[str]:
        """The trainings on one device that this column's are compared with."""
        names = [self.reference]
        names += ["legacy big batch"] if self.legacy else []
        return names + (["float32 big batch"] if self.controls and case.mixed else [])

    @property
    def controls(self) -> bool:
        """Whether the rounding of mixed precision is measured, too."""
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
    Column("Hugging Face Trainer 5.23.0", "with_trainer", "trainer"),
    Column(
        "Hugging Face Trainer 5.23.0, label smoothing",
        "with_trainer",
        "smoothed trainer",
        reference="smoothed big batch",
    ),
    Column("Hugging Face Accelerate 1.15.0", "with_accelerate", "accelerate"),
]
# The environments' names, in the folder peers beside this one.
ENVIRONMENTS = {
    "with_keras": "keras",
    "with_gradient_accumulator": "gradient-accumulator",
    "with_trainer": "huggingface",
    "with_accelerate": "huggingface",
}
# Those whose requirements name every package; PyTorch's differ from machine to machine.
COMPLETE = {"keras", "gradient-accumulator"}
