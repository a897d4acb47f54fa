"""Loading of MNIST from the four original files or with tensorflow-datasets."""

from __future__ import annotations

import gzip
import logging
import zlib
from pathlib import Path

import click
import numpy as np
from inputs import BadInput

Data = tuple[np.ndarray, np.ndarray]  # Images [n, 28, 28, 1] uint8 and labels [n] uint8.


def read_mnist(folder: Path | None) -> tuple[Data, Data]:
    """Return the training and the test examples.

    Args:
      folder: Folder with the four original files, or None to download MNIST.
    """
    if folder is None:
        return download("train"), download("test")
    return read_files(folder, "train"), read_files(folder, "t10k")


def read_files(folder: Path, name: str) -> Data:
    """Return the images and labels of one part of the original files, `train` or `t10k`."""
    images = read_idx(folder / f"{name}-images-idx3-ubyte.gz", (28, 28))
    labels = read_idx(folder / f"{name}-labels-idx1-ubyte.gz", ())
    if len(images) != len(labels):
        raise BadInput(f"{folder} has {len(images)} images but {len(labels)} labels in {name}")
    return images[..., np.newaxis], labels


def read_idx(path: Path, each: tuple[int, ...]) -> np.ndarray:
    """Return the array in an IDX file of bytes.

    The header of an IDX file consists of the bytes 0, 0, 8 (for bytes) and the number of axes,
    followed by the length of each axis.

    Args:
      path: The file, compressed with gzip.
      each: Expected shape of one example.

    Returns:
      An array, [examples, *each] uint8.

    Raises:
      BadInput: If the file cannot be read or its examples have another shape.
    """
    try:
        content = gzip.decompress(path.read_bytes())
        shape = tuple(np.frombuffer(content, ">i4", count=content[3], offset=4))
        if shape[1:] != each:
            raise ValueError(f"unexpected arrays with {len(shape) - 1} axes")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    except (OSError, EOFError, IndexError, ValueError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read: {error}; pass another folder with --data") from None


def download(split: str) -> Data:
    """Return one split of MNIST from tensorflow-datasets, which caches the download."""
    import tensorflow_datasets as tfds

    click.echo(f"loading MNIST ({split}) with tensorflow-datasets", err=True)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # Hide minutes of retry warnings.
    try:
        dataset = tfds.load("mnist", split=split, batch_size=-1, as_supervised=True)
    except (OSError, tfds.download.DownloadError) as error:
        raise BadInput(
            f"MNIST cannot be downloaded ({type(error).__name__}); pass a folder with the four"
            " original files (train-images-idx3-ubyte.gz etc.) with --data"
        ) from None
    images, labels = tfds.as_numpy(dataset)
    return images, labels.astype(np.uint8)
