"""Adapters and biases train as defined, whatever the cut, and nothing else changes."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from forked import output
from small import CLASSIFICATION, ONE_LAYER, TINY
from test_step import CONFIG

from bertaccum.bert.adapters import adapters, merge
from bertaccum.bert.dropout import ADAPTER_SITE, draw_masks, dropout_masks
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.model_source import ModelSource
from bertaccum.data.token_store import TokenStore
from bertaccum.data.windows import make_window, window_rows
from bertaccum.options.commands import TrainConfig
from bertaccum.tasks import forward
from bertaccum.training.recipe import build_model, make_optimizer, make_schedule
from bertaccum.training.step import make_update

UPDATES = 4
HEAD = r"pooler_transform|sentence_prediction"
LORA = {"adapt": "lora", "lora_rank": 3, "lora_alpha": 12.0, "lora_targets": "all"}
BIAS = {"adapt": "bias"}
TRAINED = {
    "lora": (LORA, rf"lora_|{HEAD}"),
    "lora of some layers": (
        {"adapt": "lora", "lora_targets": "key,output", "train_layers": 1},
        rf"layer_1/(self_attention/key|output)/lora_|{HEAD}",
    ),
    "bias": (BIAS, rf"bias|beta|{HEAD}"),
    "bias of some layers": ({**BIAS, "train_layers": 1}, rf"layer_1.*(bias|beta)|{HEAD}"),
}
COMPILED = {"sizes": 3, "compile": "on", "recompute": "layer"}


def model_of(
    encoder: EncoderConfig = ONE_LAYER, **options: Any
) -> tuple[TrainConfig, tf_keras.Model]:
    config = TrainConfig(**{**vars(CONFIG), **options})
    if config.train_layers is not None:
        encoder = TINY  # One of its two layers is frozen.
    return config, build_model(config, ModelSource("tiny", encoder, None, None), 2)


def named(model: tf_keras.Model) -> dict[str, np.ndarray]:
    return {v.name: v.numpy() for v in model.variables}


def rows_of(store: TokenStore, number: int) -> np.ndarray:
    return window_rows(number, len(store), CONFIG.target_batch, CONFIG.seed)[1]


def trained(store: TokenStore, sizes: int = 8, **options: Any) -> dict[str, np.ndarray]:
    """Return the weights after `UPDATES` updates in micro-batches of `sizes` examples."""
    config, model = model_of(**options)
    optimizer = make_optimizer(config, UPDATES, 2)
    several, compiled = sizes < config.target_batch, config.compile == "on"
    update = make_update(CLASSIFICATION, model, optimizer, 5, several, compile=compiled)
    # XLA compiles each shape. The longest example has 20 tokens.
    allowed = [(sizes, 20)] if compiled else ()
    for number in range(UPDATES):
        window = make_window(store, rows_of(store, number), sizes, allowed=allowed)
        assert update(window)["applied"]
    # Frozen weights have neither moments nor accumulators.
    if several:
        assert len(optimizer.accumulators) == len(model.trainable_variables)
    return named(model)


def plainly_trained(store: TokenStore, chosen: str, **options: Any) -> dict[str, np.ndarray]:
    """Train with plain tf_keras, and with the gradients of kernels to which adapters are added."""
    config, adapted = model_of(**options)
    _, plain = model_of(ONE_LAYER if config.train_layers is None else TINY)
    values = {v.name: tf.Variable(v) for v in adapted.variables}
    scale = (config.lora_alpha or 2 * config.lora_rank) / config.lora_rank
    variables = [v for name, v in values.items() if re.search(chosen, name)]
    optimizer = tf_keras.optimizers.AdamW(
        0.0, weight_decay=config.weight_decay, beta_2=config.adam_beta2, epsilon=1e-8
    )
    names = {id(v): name for name, v in values.items()}
    optimizer.exclude_from_weight_decay(
        [v for v in variables if re.search("bias|gamma|beta", names[id(v)])]
    )
    for number in range(UPDATES):
        factors = {}
        for kernel in plain.variables:
            value, name = values[kernel.name], kernel.name.removesuffix("kernel:0")
            if f"{name}lora_a:0" in values:
                factors[kernel.name] = [values[f"{name}lora_{one}:0"].numpy() for one in "ab"]
                a, b = factors[kernel.name]
                kernel.assign(value + scale * (a @ b).reshape(kernel.shape))
            else:
                kernel.assign(value)
        rows = rows_of(store, number)
        examples = [store.token_ids[store.offsets[r] : store.offsets[r + 1]] for r in rows]
        with tf.GradientTape() as tape:
            logits = forward.logits_of(plain, tf.ragged.constant(examples, tf.int32))
            loss = tf.reduce_mean(CLASSIFICATION.losses(logits, tf.constant(store.labels[rows])))
        of_plain = dict(
            zip(map(str, named(plain)), tape.gradient(loss, plain.variables), strict=True)
        )
        gradients = {name: tf.convert_to_tensor(g) for name, g in of_plain.items()}
        for name, (a, b) in factors.items():
            whole = scale * gradients[name].numpy().reshape(len(a), -1)
            prefix = name.removesuffix("kernel:0")
            gradients[f"{prefix}lora_a:0"] = tf.constant(whole @ b.T)
            gradients[f"{prefix}lora_b:0"] = tf.constant(a.T @ whole)
        own = [gradients[names[id(v)]] for v in variables]
        own, _ = tf.clip_by_global_norm(own, config.clip_norm)
        optimizer.learning_rate = float(make_schedule(config, UPDATES)(number))
        optimizer.apply_gradients(zip(own, variables, strict=True))
    return {name: v.numpy() for name, v in values.items()}


@pytest.mark.parametrize("case", TRAINED)
def test_trained_weights_are_those_of_the_options(case: str) -> None:
    options, chosen = TRAINED[case]
    _, model = model_of(**options)
    found = [v.name for v in model.trainable_variables]
    assert sorted(found) == sorted(name for name in named(model) if re.search(chosen, name))


@pytest.mark.parametrize("case", [case for case in TRAINED if case != "bias"])
def test_updates_are_those_of_the_definition(store: TokenStore, case: str) -> None:
    options, chosen = TRAINED[case]
    before, found = named(model_of(**options)[1]), trained(store, offload="all", **options)
    expected = plainly_trained(store, chosen, **options)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6, err_msg=name)
        assert np.array_equal(value, before[name]) != bool(re.search(chosen, name)), name


@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({**LORA, "lora_dropout": 0.4}, {"sizes": 5, "recompute": "layer", "offload": "moments"}),
        pytest.param(BIAS, COMPILED, marks=pytest.mark.slow),
        pytest.param(
            {**LORA, "lora_dropout": 0.4, "frozen_dtype": "bfloat16"},
            COMPILED,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_updates_do_not_depend_on_the_cut(
    store: TokenStore, options: dict[str, Any], other: dict[str, Any]
) -> None:
    whole = trained(store, sizes=32, dropout=0.2, **options)
    cut = trained(store, dropout=0.2, **options, **other)
    for name, value in whole.items():
        one, two = np.float32(cut[name]), np.float32(value)
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-6, err_msg=name)


def test_other_initial_weights_do_not_depend_on_adapters() -> None:
    (_, plain), (_, adapted) = model_of(TINY), model_of(TINY, **LORA)
    values = named(adapted)
    for name, value in named(plain).items():
        np.testing.assert_array_equal(values.pop(name), value)
    assert all("lora_" in name for name in values) and len(values) == 24
    for name, value in values.items():
        bound = 1 / np.sqrt(len(value))
        spread = np.abs(value).max()
        assert spread == 0 if "lora_b" in name else 0.8 * bound < spread <= bound, name
    a_of_two = [values[f"transformer/layer_{n}/self_attention/key/lora_a:0"] for n in (0, 1)]
    assert not np.array_equal(*a_of_two)
    _, other = model_of(**LORA, seed=1)
    drawn = named(other)["transformer/layer_0/self_attention/key/lora_a:0"]
    assert not np.array_equal(a_of_two[0], drawn)


def test_dropout_of_adapters_changes_no_other_mask() -> None:
    seed, count = tf.constant([3, 1], tf.int64), tf.constant(8)
    plain, *all_adapted = (
        draw_masks(model_of(TINY, dropout=0.2, **options)[1], seed, count)
        for options in ({}, *({**LORA, "lora_dropout": rate} for rate in (0.05, 0.2, 0.4)))
    )
    for adapted in all_adapted:
        own = [adapted.sites.index(site) for site in plain.sites]
        assert len(adapted.sites) == len(plain.sites) + 12 and max(plain.sites) < ADAPTER_SITE
        assert len(set(adapted.sites)) == len(adapted.sites)
        np.testing.assert_array_equal(adapted.pools[0.2], plain.pools[0.2])
        np.testing.assert_array_equal(tf.gather(adapted.of_sites, own), plain.of_sites)
        np.testing.assert_array_equal(adapted.offsets, plain.offsets)


def test_dropout_of_adapters_drops_their_share_of_inputs_wider_than_a_mask() -> None:
    """The inputs of the layer `output` are wider than any mask of this model."""
    encoder = dataclasses.replace(TINY, intermediate_size=70)
    config = TrainConfig(**{**vars(CONFIG), **LORA, "lora_dropout": 0.25})
    model = build_model(config, ModelSource("tiny", encoder, None, None), 2)
    encoder = model.checkpoint_items["encoder"]
    wide = [x.adapter for x in adapters(encoder) if x.name == "output"]
    rows, examples = tf.ones([512, 70]), tf.constant(64)
    with dropout_masks(draw_masks(model, tf.constant([0, 1], tf.int64), examples)):
        first, second = (adapter._dropped(rows).numpy() for adapter in wide)
    assert first.shape == (512, 70) and not np.array_equal(first, second)
    assert {*np.unique(first)} == {0, np.float32(1 / 0.75)}
    assert abs((first == 0).mean() - 0.25) < 0.02
    # Neither the tokens of an example nor the parts of a row share a mask.
    assert len(np.unique(first[:8], axis=0)) == 8
    assert not np.array_equal(first[:, :24], first[:, 24:48])


def test_merged_model_has_the_same_outputs_and_the_weights_of_a_plain_one() -> None:
    (_, plain), (_, model) = model_of(), model_of(**LORA)
    for v in model.trainable_variables:
        v.assign_add(tf.random.stateless_normal(v.shape, [1, len(v.name)], stddev=0.3))
    tokens = tf.ragged.constant([[2, 7, 8, 3], [2, 9, 3]], tf.int32)
    before = forward.logits_of(model, tokens)
    merge(model.checkpoint_items["encoder"])
    np.testing.assert_allclose(forward.logits_of(model, tokens), before, rtol=0, atol=1e-5)
    assert [v.name for v in model.variables] == [v.name for v in plain.variables]
    assert len(model.trainable_variables) == len(plain.trainable_variables)


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"train_layers": 1}, "layer_0.*kernel|word_embeddings"),
        ({"freeze": "embeddings"}, "word_embeddings"),
    ],
)
def test_frozen_kernels_and_embeddings_are_in_half_precision(
    options: dict[str, Any], chosen: str
) -> None:
    _, model = model_of(frozen_dtype="float16", **options)
    for v in model.variables:
        assert (v.dtype == tf.float16) == bool(re.search(chosen, v.name)), v.name


@pytest.mark.parametrize(("options", "dtype"), [(LORA, "float16"), (BIAS, "bfloat16")])
def test_frozen_weights_in_half_precision_train_like_rounded_ones(
    store: TokenStore, options: dict[str, Any], dtype: str
) -> None:
    halves = {
        v.name: v
        for v in model_of(frozen_dtype=dtype, **options)[1].variables
        if v.dtype != tf.float32
    }
    assert {v.dtype for v in halves.values()} == {tf.as_dtype(dtype)}
    assert all(re.search("kernel|word_embeddings", name) for name in halves)
    found = trained(store, frozen_dtype=dtype, **options)

    build = build_model

    def rounded(*arguments: Any) -> tf_keras.Model:
        model = build(*arguments)
        for v in model.variables:
            if v.name in halves:
                v.assign(tf.cast(halves[v.name].read_value(), tf.float32))
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("test_adapters.build_model", rounded)
        expected = trained(store, **options)
    for name, value in found.items():
        np.testing.assert_allclose(
            np.float32(value), expected[name], rtol=0, atol=1e-6, err_msg=name
        )


MEMORY = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from bertaccum.distribution.device_memory import limit_memory, peak_memory_bytes, reset_peak_memory
# With several threads, the peak depends on the order in which operations happen to run.
tf.config.threading.set_inter_op_parallelism_threads(1)
limit_memory(2000 * 2**20)
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.bert.model_source import ModelSource
from bertaccum.data.windows import Window
from bertaccum.options.commands import TrainConfig
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.labels import Labels
from bertaccum.training.recipe import build_model, make_optimizer
from bertaccum.training.step import make_update
config = TrainConfig(**json.loads(sys.argv[1]))
source = ModelSource("small", PRESET_CONFIGS["bert-small"], None, None)
model = build_model(config, source, outputs=2)
task = Classification(Labels.numbered(2))
length, kept = map(int, sys.argv[2:])
if kept:
    for layer in model.checkpoint_items["encoder"].hidden_layers:
        layer.recompute_attention = False
update = make_update(task, model, make_optimizer(config, 8, 2), 0, True)
splits, cuts = np.arange(3, dtype=np.int64) * length, np.array([0, 1, 2], np.int32)
for _ in range(3):
    reset_peak_memory()
    update(Window(np.ones(2 * length, np.int32), splits, np.zeros(2, np.int32), cuts))
print(peak_memory_bytes() / 2**20)
"""


def peak(options: dict[str, Any], length: int = 128, kept: bool = False) -> float:
    """Return the peak memory of BERT-Small's updates in MiB.

    Args:
      length: Number of tokens of each example; a micro-batch has one.
      kept: Whether the attention weights are kept for the backward pass.
    """
    return float(output(MEMORY, json.dumps(options), str(length), str(int(kept))))


@pytest.mark.slow
def test_adapted_layers_do_not_keep_attention_weights() -> None:
    kept, computed_again = (peak(LORA, 512, kept) for kept in (True, False))
    # The weights of each of the four layers take 8 MiB, and so do their dropout masks.
    assert computed_again < kept - 32, (kept, computed_again)


@pytest.mark.slow
def test_frozen_weights_take_no_memory_for_training() -> None:
    """BERT-Small has 110 MiB of weights, and trained in full four times as much."""
    cases: dict[str, dict[str, Any]] = {
        "full": {},
        "lora": LORA,
        "bias": BIAS,
        "half": {**LORA, "frozen_dtype": "bfloat16"},
    }
    peaks = {name: peak({**options, "recompute": "layer"}) for name, options in cases.items()}
    assert peaks["full"] > 480 and max(peaks["lora"], peaks["bias"]) < 150, peaks
    # Half of 110 MiB, and less than all kernels in float32, which take 48 MiB.
    assert peaks["half"] < peaks["lora"] - 40, peaks
