"""Best checkpoints of adapted models, which contain only what was trained.

The other weights are those of the checkpoint from which training began.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.bert.adapters import Adaptation
from bertaccum.bert.in_place import assign_in_place, read_tensor
from bertaccum.bert.model_finder import find_weights
from bertaccum.bert.model_source import RUN_PREFIX, ModelSource
from bertaccum.bert.pretrained_weights import is_kernel, weight_name
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import StepConfig
from bertaccum.system.atomic import write_text
from bertaccum.system.files import json_text, read_object
from bertaccum.system.progress import silent

FILE = "adapters.json"
# The options that select the weights from which training began.
_SELECTING = ("init_checkpoint", "model", "bert_config")


@dataclass(frozen=True)
class AdapterFiles:
    """The description of an adapted model, in `adapters.json` beside its weights.

    Args:
      how: How the encoder is adapted.
      frozen_dtype: Dtype to which frozen weights were rounded.
      base: Options that select the weights from which training began; None if the checkpoint
        contains all weights, because these were random.
      digest: Digest of those weights; None for random ones.
    """

    how: Adaptation
    frozen_dtype: str
    base: dict[str, str | None] | None
    digest: str | None

    @staticmethod
    def of(config: StepConfig, source: ModelSource) -> AdapterFiles | None:
        """Return the description of a run's model; None if whole layers are trained."""
        how = Adaptation.of(config)
        if how is None:
            return None
        base = {name: getattr(config, name) for name in _SELECTING}
        known = None if source.checkpoint is None else base
        return AdapterFiles(how, config.frozen_dtype, known, source.weights_digest)

    def weights(self, model: tf_keras.Model) -> list[tf.Variable]:
        """Return the weights of an adapted model that its checkpoints contain."""
        return list(model.variables if self.base is None else model.trainable_variables)

    def write(self, model: tf_keras.Model, folder: Path) -> None:
        """Write the description and the weights of an adapted model to a folder."""
        write_text(folder / FILE, json_text(dataclasses.asdict(self)))
        weights = self.weights(model)
        tf.raw_ops.SaveV2(
            prefix=str(folder / RUN_PREFIX),
            tensor_names=[weight_name(weight) for weight in weights],
            shape_and_slices=[""] * len(weights),
            tensors=[weight.read_value() for weight in weights],
        )

    @staticmethod
    def read(folder: Path) -> AdapterFiles | None:
        """Return the description in a folder; None if its model is not an adapted one."""
        path = folder / FILE
        if not path.exists():
            return None
        try:
            values: dict[str, Any] = read_object(path)
            how = values["how"] | {"targets": tuple(values["how"]["targets"])}
            return AdapterFiles(**values | {"how": Adaptation(**how)})
        except (TypeError, KeyError) as error:
            raise InputError(f"is damaged ({error})", "train the model again", path=path) from None

    def find_base(self, folder: Path) -> ModelSource:
        """Return the weights from which training began.

        Raises:
          InputError: They cannot be found, or have changed.
        """
        assert self.base is not None
        named = self.base["init_checkpoint"]
        try:
            source = find_weights(StepConfig(**self.base), silent)  # type: ignore[arg-type]
            digest = source.weights_digest
        except (ConfigError, InputError) as error:
            what = f"has adapters of {named}, which cannot be read: {error}"
            raise InputError(what, path=folder) from None
        if digest != self.digest:
            what = f"has adapters of {named}, whose weights changed since then"
            raise InputError(what, "restore them, or train the model again", path=folder)
        return source

    def round(self, encoder: tf_keras.Model) -> None:
        """Round the kernels and word embeddings of an encoder as the run did."""
        if self.frozen_dtype == "float32":
            return
        for weight in encoder.variables:
            frozen = is_kernel(weight) and "pooler" not in weight.name
            if frozen or "word_embeddings" in weight.name:
                half = tf.cast(weight.read_value(), self.frozen_dtype)
                assign_in_place(weight, tf.cast(half, weight.dtype))

    def load(self, weights: list[tf.Variable], folder: Path) -> None:
        """Read weights of an adapted model from its checkpoint."""
        prefix = str(folder / RUN_PREFIX)
        dtypes = tf.train.load_checkpoint(prefix).get_variable_to_dtype_map()
        for weight in weights:
            name = weight_name(weight)
            value = read_tensor(prefix, name, dtypes.get(name, weight.dtype))
            assign_in_place(weight, tf.cast(value, weight.dtype))
