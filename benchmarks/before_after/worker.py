# SPDX-License-Identifier: Apache-2.0
"""Plans with the `reshard` that PYTHONPATH leads to: each line of stdin is a call of `reshard.plan`.

Each call is answered by a line on stdout; the very first line of stdout is the path of `reshard`. The worker uses only
the public interface, so it works with every version.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time

import reshard

LEAST_LIMIT = re.compile(r"raise the limit to (\d+)")  # the least memory limit with a plan


def answer(arguments: dict) -> dict:
    """Returns the costs of the plan, or why there is no plan; every exception of the planner becomes an answer."""
    start_s = time.process_time()
    try:
        found = reshard.plan(**{**arguments, "shape": tuple(arguments["shape"])})
    except reshard.NoPlanError as error:
        least = LEAST_LIMIT.search(str(error))
        found = {"status": "refused", "message": str(error)[:500], "least_limit": int(least[1]) if least else None}
    except Exception as error:
        found = {"status": "error", "message": f"{type(error).__name__}: {error}"[:500]}
    seconds = time.process_time() - start_s
    return {**(found if isinstance(found, dict) else _costs(found)), "seconds": round(seconds, 6)}


def _costs(plan: reshard.Plan) -> dict:
    return {
        "status": "ok",
        "bytes": plan.bytes_received,
        "time_s": plan.time_s,
        "peak_bytes": plan.peak_bytes,
        "collectives": plan.collectives,
        "is_optimal": plan.is_optimal,
        "chain": plan.chain_text[:300],
    }


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    reshard.plan('[{"x"}, {}]', '[{}, {"x"}]', mesh="x=4", shape=(8, 8), topology="h100")  # loads the modules
    print(json.dumps(reshard.__file__), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
