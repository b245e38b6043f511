"""What the laws of datasets share."""

import numpy as np

from armd.data.dataset import Split


def stored_shards(split: Split) -> list[np.ndarray]:
    """The tokens of each shard as they stand in its file."""
    dtype = np.dtype(split.dataset.manifest["dtype"]).newbyteorder("<")
    return [np.fromfile(split.dataset.folder / shard["file"], dtype) for shard in split.shards]
