"""The error for values of more dims than HTP has, where no nodes may be left to the CPU."""

from __future__ import annotations

from pipeline.contracts.rewrite import TooManyDims
from pipeline.errors import ModelError
from pipeline.plain_text import cutting

_NODES_OF_ONE = 5
"""How many nodes stay on the CPU for one such value, with the conversions around it."""


def too_many_dims(found: TooManyDims) -> ModelError:
    """The error for the first of these values."""
    why = "HTP has no tensors of more dims, in no precision"
    if not found.nodes:
        return ModelError(
            f"{found.at} has {found.dims} dims: QNN takes at most {found.most}",
            where=found.value,
            why=why,
            remedy=f"export the model with at most {found.most} dims there, dims of 1 left out and neighbours merged,"
            " and let the application reshape",
        )
    return ModelError(
        f"{found.at} has a tensor of {found.dims} dims: QNN takes at most {found.most}",
        where=found.value,
        why=f"{why}; dims of 1 were left out and neighbours merged wherever that leaves {found.most}, and here it does"
        " not",
        remedy=f"{cutting(found.ends)}export the model with fewer dims around it; or leave it to the CPU with"
        f" thresholds: {{max_cpu_nodes: {_NODES_OF_ONE * found.nodes}, max_partitions: 2}}",
    )
