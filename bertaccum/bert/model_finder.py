"""The encoder, weights and vocabulary that options select, found without importing TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path

from bertaccum.bert import checkpoint_files
from bertaccum.bert.download import fetch_preset, has_preset, unpack
from bertaccum.bert.encoder_config import EncoderConfig, read_bert_config
from bertaccum.bert.google_checkpoint import GOOGLE
from bertaccum.bert.hub_checkpoint import describe_checkpoint, fetch_checkpoint
from bertaccum.bert.huggingface_folder import CONFIG, HUGGINGFACE, RELATIVES
from bertaccum.bert.model_source import NO_CHECKPOINT, RUN_PREFIX, CheckpointFormat, ModelSource
from bertaccum.bert.peft_folder import ADAPTER_CONFIG, has_adapter, read_adapter
from bertaccum.bert.presets import PRESET_CONFIGS, PRESETS, preset_name
from bertaccum.bert.tokenizer_files import WORDS, gives_segments, read_tokenizer
from bertaccum.bert.unknown_model import advice
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import StepConfig
from bertaccum.options.fields import is_address
from bertaccum.options.pretraining import text_paths
from bertaccum.system.atomic import complete_folder
from bertaccum.system.cache import cache_folder, cached_folder
from bertaccum.system.files import read_mapping, sha256
from bertaccum.system.hub_names import HUB_PREFIX, Repository, model_named
from bertaccum.system.phrases import counted, listed
from bertaccum.system.progress import Progress, tell

DEFAULT_PRESET = "bert-small"
# Usual number of embeddings without an entry, which make the size a multiple of 8 to 128 for each
# GPU. Few models have more, such as dbmdz/bert-base-italian-xxl-cased: 32,102 for 31,102 entries.
_USUAL_SPARE = 512
# Formats of checkpoints, in order of precedence.
FORMATS = (HUGGINGFACE, *RELATIVES, GOOGLE)


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint."""

    folder: Path
    prefix: str
    form: CheckpointFormat
    name: str  # Its name, which may tell how texts were cleaned; see `read_tokenizer`.
    of_run: bool = False  # Whether it is the best checkpoint of a `bertaccum train` run.
    repository: Repository | None = None  # Its repository if it is on the Hugging Face Hub.
    own_tokenizer: Path | None = None  # Folder of its tokenizer, if that is not `folder`.

    @property
    def tokenizer(self) -> Path:
        """Folder of its tokenizer."""
        return self.own_tokenizer or self.folder


def find_model(config: StepConfig, progress: Progress) -> ModelSource:
    """Return the model that `model`, `bert_config`, `init_checkpoint` and `vocab` select.

    Raises:
      ConfigError: The options contradict each other.
    """
    config = _with_presets(config)
    checkpoint = _checkpoint(config, progress)
    encoder = _encoder(config, checkpoint)
    vocabulary_path = _vocabulary_path(config, checkpoint)
    vocabulary = _vocabulary(config, checkpoint, vocabulary_path)
    if checkpoint is None and config.bert_config is None:
        encoder = dataclasses.replace(encoder, vocab_size=len(vocabulary))
    if (
        checkpoint is not None
        and checkpoint.form.of_transformers
        # A file from elsewhere must have an entry for each embedding.
        and vocabulary_path.parent.resolve() == checkpoint.tokenizer.resolve()
    ):
        if encoder.vocab_size - len(vocabulary) > _USUAL_SPARE:
            sizes = f"{len(vocabulary):,} entries for {encoder.vocab_size:,} embeddings"
            tell(progress, f"{vocabulary_path} has only {sizes}: check that it is complete")
        vocabulary = vocabulary.padded(encoder.vocab_size)
    if len(vocabulary) != encoder.vocab_size:
        raise InputError(
            f"has {len(vocabulary)} entries, but the model's vocab_size is {encoder.vocab_size}",
            "use the vocabulary that the model was pretrained with",
            path=vocabulary_path,
        )
    _check_dimensions(config, encoder)
    on_hub = None if checkpoint is None else checkpoint.repository
    pinned = None if on_hub is None else on_hub.pinned
    name = _name(config, checkpoint)
    source = ModelSource(name, encoder, vocabulary, checkpoint=None, pinned=pinned)
    if checkpoint is not None:
        return _pretrained(source, checkpoint, config)
    if config.keep_head:
        raise ConfigError(
            "`keep_head` needs `init_checkpoint`", "set it to a fine-tuned classifier, or omit it"
        )
    return source


def find_weights(config: StepConfig, progress: Progress) -> ModelSource:
    """Return the pretrained weights that options select, without dimensions and a vocabulary."""
    config = _with_presets(config)
    checkpoint = _checkpoint(config, progress)
    source = ModelSource(_name(config, checkpoint), EncoderConfig(), None, None)
    return source if checkpoint is None else _pretrained(source, checkpoint, config)


def find_dimensions(config: StepConfig, progress: Progress) -> ModelSource:
    """Return a model as `find_model` does, without downloading weights or a vocabulary.

    For a model that is not in the cache, and for random weights without a vocabulary file, the
    result has the model's dimensions and an empty vocabulary.
    """
    config = _with_presets(config)
    named = config.init_checkpoint or config.model or DEFAULT_PRESET
    if (repository := model_named(named)) is not None:
        found = describe_checkpoint(repository, progress, *_selected(config))
        if not found.is_downloaded:
            form = GOOGLE if found.weights_file is None else HUGGINGFACE
            described = _Checkpoint(found.folder, "", form, named, repository=found.repository)
            encoder = _encoder(config, described)
            _check_dimensions(config, encoder)
            return ModelSource(_name(config, described), encoder, None, None)
    vocabulary = Path(config.vocab) if config.vocab else Path(config.data) / "vocab.txt"
    absent = named in PRESET_CONFIGS and not has_preset(named, progress)
    wordless = named == NO_CHECKPOINT and not vocabulary.is_file()
    if config.bert_config is not None or not (absent or wordless):
        return find_model(config, progress)
    name = config.model or (named if absent else DEFAULT_PRESET)
    if absent and name != named:
        raise ConfigError(
            f"`model` {name} and `init_checkpoint` {named} differ", "omit one of the two"
        )
    _check_dimensions(config, PRESET_CONFIGS[name])
    return ModelSource(name, PRESET_CONFIGS[name], None, None)


def _check_dimensions(config: StepConfig, encoder: EncoderConfig) -> None:
    layers, trained = encoder.num_hidden_layers, config.train_layers
    if trained is not None and trained > layers:
        raise ConfigError(
            f"`train_layers` is {trained}, but the model has {counted(layers, 'layer')}",
            f"use at most {layers}",
        )
    if config.max_seq_length > encoder.max_position_embeddings:
        raise ConfigError(
            f"`max_seq_length` {config.max_seq_length} is above the model's"
            f" {encoder.max_position_embeddings} positions",
            f"use at most {encoder.max_position_embeddings}",
        )


def _checkpoint(config: StepConfig, progress: Progress) -> _Checkpoint | None:
    named = config.init_checkpoint
    if named is None and config.bert_config is not None:
        raise ConfigError(
            "`bert_config` needs `init_checkpoint`, because a configuration has no weights",
            "set `init_checkpoint` to a folder, a zip file, or none for random weights",
        )
    named = named or config.model or DEFAULT_PRESET
    if named == NO_CHECKPOINT:
        return None
    if named in PRESET_CONFIGS:
        return _Checkpoint(
            fetch_preset(named, progress),
            checkpoint_files.RELEASED_PREFIX,
            GOOGLE,
            PRESETS[named].archive,
        )
    if (repository := model_named(named)) is not None:
        found = fetch_checkpoint(repository, progress, *_selected(config))
        checkpoint = _in_folder(found.folder, found.weights_file, config)
        of_hub = found.repository
        return dataclasses.replace(checkpoint, name=of_hub.name, repository=of_hub)
    if named.startswith(HUB_PREFIX):
        raise InputError(
            "names no model", "write hf://OWNER/NAME or hf://OWNER/NAME@REVISION", path=named
        )
    if is_address(named):  # A path would lose a slash.
        raise InputError("is an address, not a path", advice(named), path=named)
    path = Path(checkpoint_files.checkpoint_home(named))
    if checkpoint_files.is_run(path):
        return _Checkpoint(_best_of_run(path), RUN_PREFIX, GOOGLE, path.name, of_run=True)
    if has_adapter(path):
        return _adapted(path, config, progress)
    if path.is_dir():
        return _in_folder(
            path, Path(named).name if checkpoint_files.is_prefix(named) else None, config
        )
    if path.is_file():
        checkpoint_files.refuse_file(path)
        home = cache_folder() / "checkpoints" / sha256(path)[:16]
        folder = cached_folder(home, lambda folder: unpack(path, folder), progress)
        return _Checkpoint(folder, checkpoint_files.RELEASED_PREFIX, GOOGLE, path.name)
    is_path = named.endswith(".zip") or Path(named).name != named
    raise InputError(
        f"there is no such {'file or folder' if is_path else 'checkpoint'}",
        advice(named),
        path=path,
    )


def _adapted(folder: Path, config: StepConfig, progress: Progress) -> _Checkpoint:
    """Return the base model of an adapter in peft's format, with the adapter merged into it."""
    adapter = read_adapter(folder)
    if adapter.base is None:
        remedy = "set base_model_name_or_path in it to that model"
        raise InputError("does not name its base model", remedy, path=folder / ADAPTER_CONFIG)
    if has_adapter(Path(adapter.base)):
        what = f"is an adapter of {adapter.base}, which is an adapter itself"
        raise InputError(what, "merge that one with merge_and_unload() in peft", path=folder)
    base = None
    try:
        if adapter.base not in PRESET_CONFIGS:  # Those have Google's format.
            base = _checkpoint(dataclasses.replace(config, init_checkpoint=adapter.base), progress)
    except InputError as error:
        what = f"is an adapter of {adapter.base}, which cannot be read: {error}"
        raise InputError(what, path=folder) from None
    if base is None or base.of_run or not base.form.transposed:
        what = f"is an adapter of {adapter.base}, which is not in Hugging Face's format"
        raise InputError(what, "set base_model_name_or_path to such a folder", path=folder)
    # The commit of the base model does not identify the adapter.
    form = adapter.merged_into(base.form)
    # The adapter may have been trained with other tokens than the base model.
    has_vocabulary = any((folder / name).is_file() for name in (WORDS, *form.vocabularies))
    own = folder if has_vocabulary else None
    # The name stays that of the base model, which may tell how texts were cleaned.
    return dataclasses.replace(base, form=form, repository=None, own_tokenizer=own)


def _with_presets(config: StepConfig) -> StepConfig:
    """Return options that name presets as `bertaccum models` does, not as Google's files."""
    model, checkpoint = config.model, config.init_checkpoint
    if model is not None:
        config = dataclasses.replace(config, model=preset_name(model))
    if checkpoint is not None:
        plain = checkpoint_files.plain_path(checkpoint)
        name = plain if Path(plain).exists() else preset_name(plain)
        config = dataclasses.replace(config, init_checkpoint=name)
    if config.model is not None and config.model not in PRESETS:
        raise ConfigError(
            f"`model` {config.model} is not the name of a preset",
            "pass a file or folder with `init_checkpoint`"
            if Path(config.model).exists()
            else advice(config.model),
        )
    return config


def _best_of_run(run: Path) -> Path:
    # Resolve links now: `runs/latest` points to the new run as soon as that one starts.
    best = complete_folder(run.resolve() / "best")
    if not (best / f"{RUN_PREFIX}.index").is_file():
        raise InputError(
            "this run has no best checkpoint yet",
            "wait for its first evaluation, or choose another `init_checkpoint`",
            path=run,
        )
    return best


def _pretrained(source: ModelSource, checkpoint: _Checkpoint, config: StepConfig) -> ModelSource:
    """Return `source` with the weights of a checkpoint."""
    form, path = checkpoint.form, checkpoint.form.weights(checkpoint.folder, checkpoint.prefix)
    source = dataclasses.replace(source, checkpoint=path, format=form)
    if checkpoint.of_run:
        labels, decoding = (
            read_mapping(checkpoint.folder / name) for name in ("labels.json", "decoding.json")
        )
        return dataclasses.replace(source, labels=labels, decoding=decoding)
    pooler = form.pooler is None or form.has_pooler(form.tensors(path))
    head = form.head(checkpoint.folder) if config.keep_head else None
    segments = not form.of_transformers or gives_segments(checkpoint.tokenizer)
    return dataclasses.replace(source, has_pooler=pooler, saw_segments=segments, head=head)


def _in_folder(folder: Path, named: str | None, config: StepConfig) -> _Checkpoint:
    """Return the checkpoint in a folder, if it has everything that the options do not name.

    Args:
      named: Prefix of the checkpoint's files, or name of its weights in Hugging Face's format; None
        if only the folder is known.
    """
    if named is None and (folder / CONFIG).is_file():
        # As on the Hub, Google's weights count only if there are none in Hugging Face's format.
        named = checkpoint_files.weights_in(folder)
    prefix = named or checkpoint_files.RELEASED_PREFIX
    form = next((form for form in FORMATS if form.is_in(folder, prefix)), None)
    if (
        form is None
        and named is None
        and GOOGLE.is_in(folder, prefix := checkpoint_files.prefix_in(folder))
    ):
        form = GOOGLE
    if form is None:
        checkpoint_files.refuse_folder(folder)
        if inside := checkpoint_files.models_inside(folder):
            remedy = f"pass the folder of one, such as {inside[-1]}"
            raise InputError("has no model, but folders in it have", remedy, path=folder)
        raise InputError(
            f"has no {prefix}.index",
            "pass a folder in the format of Google's releases or of Hugging Face, or the prefix of"
            " a checkpoint's files, such as FOLDER/model.ckpt-1000",
            path=folder,
        )
    has_dimensions, _ = _selected(config)
    form.check(folder, prefix, has_dimensions)
    return _Checkpoint(folder, prefix, form, folder.name)


def _selected(config: StepConfig) -> tuple[bool, bool]:
    """Return whether options select the dimensions, and whether they select the vocabulary."""
    return config.bert_config is not None or config.model is not None, config.vocab is not None


def _encoder(config: StepConfig, checkpoint: _Checkpoint | None) -> EncoderConfig:
    """Return the encoder's dimensions: those that the options select, else the checkpoint's."""
    own = None if checkpoint is None else checkpoint.form.encoder(checkpoint.folder)
    if config.bert_config is not None:
        named, option = read_bert_config(Path(config.bert_config)), "bert_config"
    elif config.model is not None or own is None:
        named, option = PRESET_CONFIGS[config.model or DEFAULT_PRESET], "model"
    else:
        return own
    if own is None:
        return named
    # Pretrained weights make `initializer_range` irrelevant; `find_model` checks `vocab_size`.
    differences = [
        f"{name} {value} versus {getattr(own, name)}"
        for name, value in dataclasses.asdict(named).items()
        if name not in ("initializer_range", "vocab_size") and value != getattr(own, name)
    ]
    if differences:
        raise ConfigError(
            f"`{option}` {config.bert_config or config.model} and `init_checkpoint`"
            f" {config.init_checkpoint} differ: {', '.join(differences)}",
            f"omit `{option}` to use the checkpoint's dimensions",
        )
    return own


def _vocabulary(config: StepConfig, checkpoint: _Checkpoint | None, path: Path) -> Vocabulary:
    """Return a vocabulary with the cleaning that the checkpoint or the options tell."""
    name = "" if checkpoint is None else checkpoint.name
    as_transformers = checkpoint is not None and checkpoint.form.of_transformers
    vocabulary = read_tokenizer(path, name, as_transformers)
    if config.lower_case is None:
        return vocabulary
    wanted = config.lower_case
    return dataclasses.replace(vocabulary, lower_case=wanted, strip_accents=wanted)


def _vocabulary_path(config: StepConfig, checkpoint: _Checkpoint | None) -> Path:
    if config.vocab is not None:
        return Path(config.vocab)
    # Pretrained weights need the vocabulary that was used in pretraining, whose IDs select the
    # embeddings.
    if checkpoint is not None:
        homes, others = [checkpoint.tokenizer], checkpoint.form.vocabularies
    else:
        data = text_paths(config.data) if config.predicts_masked else [config.data]
        homes, others = [Path(path) for path in data], ()
    for home, name in itertools.product(homes, (WORDS, *others)):
        if (home / name).is_file():
            return home / name
    remedy = (
        "pass one with `vocab`; `bertaccum prepare --source sample` writes data/sample/vocab.txt"
    )
    raise ConfigError(f"there is no {WORDS} in {listed([str(home) for home in homes])}", remedy)


def _name(config: StepConfig, checkpoint: _Checkpoint | None) -> str:
    if checkpoint is None:
        return config.model or config.bert_config or DEFAULT_PRESET
    if checkpoint.repository is not None:
        return checkpoint.repository.name
    named = config.init_checkpoint or DEFAULT_PRESET
    if checkpoint_files.is_run(Path(named)):
        return Path(named).resolve().name
    return config.model or Path(checkpoint_files.checkpoint_home(named)).stem
