# SPDX-License-Identifier: Apache-2.0
"""A child that answers without XLA, and answers for it."""

from reshard.dialect_utils.xla.child import Compiled, CompileRequest, KindCount


def compiled(received=1000, tile=100, temp=5000, collectives=2) -> Compiled:
    counts = (KindCount("all_gather", collectives, collectives),) if collectives else ()
    return Compiled(
        "ok", bytes_received=received, largest_collective_tile_bytes=tile, temp_bytes=temp, collectives=counts
    )


class FakeChild:
    """Answers compile requests with the given results, in order; `asked` lists the modules."""

    def __init__(self, *answers: Compiled):
        self.answers = list(answers)
        self.asked: list[str] = []
        self.foreseen: list[CompileRequest] = []

    def compile(self, module, num_devices, **_):
        self.asked.append(module)
        return self.answers.pop(0)

    def propagate(self, module, num_devices):
        return self.compile(module, num_devices)

    def prepare(self, num_devices):
        pass

    def foresee(self, requests):
        """Foresees nothing, so that `asked` lists what was needed; `foreseen` lists the requests."""
        self.foreseen += requests
