"""Knowledge distillation: a model learns from labels and from the logits of a teacher.

The loss of an example is `(1 - weight)` times that of its label plus `weight` times that of the
teacher's logits. An example without a label has only the second part.

Sources: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network"; Turc et al. 2019,
"Well-Read Students Learn Better".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bertaccum.options.task_names import MULTI_LABEL, REGRESSION
from bertaccum.tasks.task import Task
from bertaccum.tasks.token_classification import TokenClassification

if TYPE_CHECKING:
    import tensorflow as tf

TEMPERATURE, WEIGHT = 2.0, 0.5


@dataclass(frozen=True)
class Distilled:
    """An `Objective` with the teacher's logits in the label of an example.

    A label has two parts, the task's label as float32 (NaN if there is none) and the logits. For
    tags, it has a row for each word. A row consists of 1 if the token has the word's tag, or
    else 0, and of the logits, NaN if the teacher did not read the word.

    Args:
      task: Task of the model.
      words: For tags, the maximum number of words that are read of a text.
      weight: Fraction of the loss that is that of the teacher's logits.
      temperature: Number that divides the logits of both models; it does not apply to regression.
    """

    label_dtype: ClassVar[type[np.generic]] = np.float32

    task: Task
    words: int | None = None
    weight: float = WEIGHT
    temperature: float = TEMPERATURE

    @property
    def label_shape(self) -> tuple[int, ...]:
        outputs = self.task.labels.outputs
        if self.words is not None:
            return self.words, 1 + outputs
        return ((outputs if self.task.label_shape else 1) + outputs,)

    def losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return the losses [batch] of `logits` [batch, outputs] and `labels` as above."""
        import tensorflow as tf

        own, teacher = tf.split(
            labels, [labels.shape[1] - logits.shape[1], logits.shape[1]], axis=1
        )
        labeled = tf.cast(~tf.math.is_nan(own[:, 0]), tf.float32)
        # The gradient of a NaN would be NaN even with weight 0.
        own = tf.where(tf.math.is_nan(own), 0.0, own)
        if not self.task.label_shape:
            own = own[:, 0]
        of_labels = self.task.losses(logits, tf.cast(own, self.task.label_dtype))
        return self._mixed(of_labels, labeled, self.teacher_losses(logits, teacher))

    def word_losses(
        self, logits: tf.Tensor, tags: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the losses and the weights of tokens, both [passages, count] float32.

        Args:
          logits: Logits of the tokens, [passages, count, outputs].
          tags: Their tags, [passages, count]; -1 for tokens that the head does not read.
          labels: The rows of their words in the labels, [passages, count, 1 + outputs].
        """
        import tensorflow as tf

        assert isinstance(self.task, TokenClassification)
        labeled, teacher = labels[..., 0], labels[..., 1:]
        known = ~tf.math.is_nan(teacher[..., 0])
        of_teacher = self.teacher_losses(logits, tf.where(known[..., tf.newaxis], teacher, 0.0))
        of_teacher = tf.where(known, of_teacher, 0.0)
        of_tags = self.task.losses(logits, tf.maximum(tags, 0))
        # Words with neither a tag nor logits do not count.
        alone = tf.cast(known & (tags >= 0), tf.float32)
        weights = tf.where(labeled > 0, self.task.word_weights(tags), alone)
        return self._mixed(of_tags, labeled, of_teacher), weights

    def teacher_losses(self, logits: tf.Tensor, teacher: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example or word, given logits of both models [..., outputs].

        It is the squared error for regression, and otherwise the Kullback-Leibler divergence of the
        softened probabilities, multiplied by the square of the temperature. The gradient then has
        about the same size at any temperature. For several labels, it is the mean over them.
        """
        import tensorflow as tf

        if self.task.labels.task == REGRESSION:
            return tf.math.squared_difference(logits, teacher)[..., 0]
        soft, wanted = logits / self.temperature, teacher / self.temperature
        if self.task.labels.task == MULTI_LABEL:
            entropy = tf.nn.sigmoid_cross_entropy_with_logits
            targets = tf.sigmoid(wanted)
            differences = entropy(targets, soft) - entropy(targets, wanted)
            divergences = tf.reduce_mean(differences, axis=-1)
        else:
            difference = tf.nn.log_softmax(wanted) - tf.nn.log_softmax(soft)
            divergences = tf.reduce_sum(tf.nn.softmax(wanted) * difference, axis=-1)
        return self.temperature**2 * divergences

    def _mixed(self, of_labels: tf.Tensor, labeled: tf.Tensor, of_teacher: tf.Tensor) -> tf.Tensor:
        return (1 - self.weight) * labeled * of_labels + self.weight * of_teacher
