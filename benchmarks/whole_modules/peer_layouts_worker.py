# SPDX-License-Identifier: Apache-2.0
# pyright: reportMissingImports=false
"""Lays a transformer block out with PyTorch's AutoParallel, and prints the placements of its parameters as JSON.

    PYTHON peer_layouts_worker.py DATA,MODEL BATCH LENGTH HEADS WIDTH HIDDEN

PYTHON has torch 2.13 or newer, pulp, and a checkout of https://github.com/meta-pytorch/autoparallel in its path. No GPU
is needed: the process group is a fake one, and what asks for a GPU is told of an H100. `peer_layouts.py` runs this.
"""

from __future__ import annotations

import json
import sys
import time
from unittest import mock

import torch
from torch import nn

WEIGHTS = ("query", "key", "value", "out", "up", "down")


class Block(nn.Module):
    """Attention and a feed-forward layer, without norms and biases: [batch, length, width] to the same."""

    def __init__(self, heads: int, width: int, hidden: int):
        super().__init__()
        self.heads = heads
        for name in WEIGHTS[:4]:
            setattr(self, name, nn.Linear(width, width, bias=False))
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).permute(0, 2, 1, 3)
            for project in (self.query, self.key, self.value)
        )
        scores = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
        x = x + self.out((scores @ v).permute(0, 2, 1, 3).flatten(-2))
        return x + self.down(torch.relu(self.up(x)))


def main(mesh_text: str, *numbers: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.placement_types import Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for module in (torch.cpu, torch.cuda):
        mock.patch.object(module, "get_device_name", lambda *_: "H100", create=True).start()
        mock.patch.object(module, "get_device_capability", lambda *_: (9, 0), create=True).start()
    mock.patch.object(torch.cuda, "device_count", lambda: 8).start()
    from autoparallel.api import AutoParallel

    sizes = [int(each) for each in mesh_text.split(",")]
    batch, length, heads, width, hidden = map(int, numbers)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=sizes[0] * sizes[1])
    mesh = init_device_mesh("cpu", tuple(sizes), mesh_dim_names=("data", "model"))
    with torch.device("meta"):
        model = Block(heads, width, hidden)
    start = time.perf_counter()
    with AutoParallel(model, lambda: torch.rand(batch, length, width), mesh) as parallel:
        parallel.add_parameter_memory_constraint(low=None, high=None)
        by_batch = (Shard(0), Replicate())
        parallel.add_input_constraints([by_batch])
        parallel.add_output_constraints([by_batch])
        built = time.perf_counter()
        solution = parallel.optimize_placement(verbose=False)
        solved = time.perf_counter()
    placed = {}
    for node, spec in solution.items():
        if node.op == "placeholder" and node.name.startswith("primals"):
            found = getattr(spec, "output_specs", spec)
            placed[node.name] = [each.dim if each.is_shard() else None for each in found.placements]
    names = sorted(placed, key=lambda name: int(name.rpartition("_")[2]))
    print(
        json.dumps(
            {
                "weights": {name: placed[node] for name, node in zip(WEIGHTS, names)},
                "build_s": built - start,
                "solve_s": solved - built,
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
