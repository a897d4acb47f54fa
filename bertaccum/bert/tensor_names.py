"""Names of tensors without what training frameworks put around them.

PyTorch's DataParallel, `torch.compile` and FSDP rename the weights of the modules that they wrap,
and training scripts save them inside of other modules or with the state of the optimizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Parts of names that stand for no layer.
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_EMBEDDINGS = "embeddings.word_embeddings.weight"
# Prefixes of the names of the encoder: anything with `bert.` at its end, or such words.
_BEFORE_ENCODER = re.compile(
    r"(?:\w+[.])*bert[.]"
    r"|(?:(?:module|model|network|net|backbone|encoder|auto_model|checkpoint|(?:model_)?state_dict|\d+)[.])*"
)


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Return each name of a tensor, and its name in a BertModel or a classifier of transformers.

    A name keeps what precedes it unless exactly one encoder is found.
    """
    plain = {name: _unwrapped(name) for name in names}
    if len({*plain.values()}) < len(plain):
        plain = {name: name for name in plain}
    prefixes = [name.removesuffix(_EMBEDDINGS) for name in plain.values() if _is_embeddings(name)]
    if len(prefixes) != 1 or not _BEFORE_ENCODER.fullmatch(prefixes[0]):
        return plain
    # The head of a classifier is beside its encoder.
    encoder, around = prefixes[0], prefixes[0].removesuffix("bert.")
    return {name: _without(short, encoder, around) for name, short in plain.items()}


def _is_embeddings(name: str) -> bool:
    return name == _EMBEDDINGS or name.endswith(f".{_EMBEDDINGS}")


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _without(name: str, *prefixes: str) -> str:
    """Return a name without the first of the prefixes with which it begins."""
    return next((name.removeprefix(p) for p in prefixes if name.startswith(p)), name)


def plain_variables(names: Iterable[str]) -> dict[str, str]:
    """Return each name of a variable in Google's format, without what precedes `bert/`."""
    names, first = list(names), "bert/embeddings/word_embeddings"
    prefixes = [name.removesuffix(first) for name in names if name.endswith(f"/{first}")]
    around = prefixes[0] if len(prefixes) == 1 and first not in names else ""
    return {name: name.removeprefix(around) for name in names}
