"""MNIST as arrays, from the four original files or through tensorflow-datasets."""

from __future__ import annotations

import gzip
import logging
import zlib
from pathlib import Path

import click
import numpy as np
from inputs import BadInput

Data = tuple[np.ndarray, np.ndarray]  # images uint8 [n, 28, 28, 1], labels uint8 [n]


def read_mnist(folder: Path | None) -> tuple[Data, Data]:
    """Training and test examples; without a folder they are downloaded."""
    if folder is None:
        return download("train"), download("test")
    return read_files(folder, "train"), read_files(folder, "t10k")


def read_files(folder: Path, name: str) -> Data:
    """One part of the original data."""
    images = read_idx(folder / f"{name}-images-idx3-ubyte.gz", (28, 28))
    labels = read_idx(folder / f"{name}-labels-idx1-ubyte.gz", ())
    if len(images) != len(labels):
        raise BadInput(f"{folder} has {len(images)} images and {len(labels)} labels of {name}")
    return images[..., np.newaxis], labels


def read_idx(path: Path, each: tuple[int, ...]) -> np.ndarray:
    """Bytes, [n, *each], after a header: 0, 0, 8 for bytes, how many axes, the length of each."""
    try:
        content = gzip.decompress(path.read_bytes())
        shape = tuple(np.frombuffer(content, ">i4", count=content[3], offset=4))
        if shape[1:] != each:
            raise ValueError(f"it has arrays of {len(shape) - 1} axes")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    except (OSError, EOFError, IndexError, ValueError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read ({error}); name another folder by --data") from None


def download(split: str) -> Data:
    """Through tensorflow-datasets, which keeps it."""
    import tensorflow_datasets as tfds

    click.echo(f"MNIST, {split}: through tensorflow-datasets", err=True)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # It tries for minutes, and tells.
    try:
        dataset = tfds.load("mnist", split=split, batch_size=-1, as_supervised=True)
    except (OSError, tfds.download.DownloadError) as error:
        raise BadInput(
            f"MNIST cannot be downloaded ({type(error).__name__}); name a folder with the four"
            " original files, train-images-idx3-ubyte.gz and so on, by --data"
        ) from None
    images, labels = tfds.as_numpy(dataset)
    return images, labels.astype(np.uint8)
