# SPDX-License-Identifier: Apache-2.0
"""The time in a compiler's schedule, and the schedules whose time is missing or cannot be true."""

import pytest

from reshard.dialect_utils.xla.child import Compiled, comparable_estimates, shown_estimates
from reshard.dialect_utils.xla.schedule_estimates import estimated_seconds, instructions_for_free, is_mispriced

MIB = 1 << 20


def schedule(cycles: float, *, computation: int = 7, per_us: float = 1500, spans=()) -> str:
    """Returns the part of a schedule about one computation, as XLA dumps it."""
    lines = ["computation_schedules {", f"  computation_id: {computation}"]
    for start, end in spans or [(0, cycles)]:
        lines += ["  instructions {", f"    start_timestamp_cycles: {start}", f"    end_timestamp_cycles: {end}", "  }"]
    lines += ["  scheduler_statistics {", "    total_wasted_cycles: 5", f"    total_cycles: {cycles + 5}", "  }"]
    return "\n".join([*lines, f"  cycles_per_microsecond: {per_us}", "}", ""])


def dumped(*schedules: str, entry: int = 7) -> str:
    return f'hlo_module {{\n  name: "m"\n  entry_computation_id: {entry}\n}}\n' + "".join(schedules)


def test_cycles_of_the_entry_computation_alone():
    """The cycles of the entry computation already include those of a loop's body, times the number of its runs."""
    text = dumped(schedule(1000, computation=3), schedule(1.2e6))
    assert estimated_seconds(text, 20 * MIB) == 8e-4


def test_a_total_that_no_network_could_bring_about_is_none():
    assert estimated_seconds(dumped(schedule(21)), 2 * MIB) is None
    assert estimated_seconds(dumped(schedule(21)), 0) == 1.4e-8


def test_what_runs_beside_other_work_takes_no_time_of_its_own():
    """The statistics add up the collective and the product beside it; the schedule has them at the same time."""
    text = dumped(schedule(3000, per_us=1, spans=[(0, 1), (1, 2000), (2000, 2001)]))
    assert estimated_seconds(text, MIB) == 2.001e-3


def test_no_entry_or_no_instructions_is_none():
    assert estimated_seconds("", 0) is None
    assert estimated_seconds(dumped(schedule(1000, computation=3)), 0) is None
    assert estimated_seconds(dumped(schedule(1000).replace("end_timestamp_cycles", "memory_pressure_peak")), 0) is None
    assert estimated_seconds(dumped(schedule(0)), 0) is None


def test_the_fixed_price_of_what_a_compiler_cannot_price_is_none():
    text = dumped(schedule(5200, per_us=1, spans=[(0, 8), (8, 5007.5), (5007.5, 5200)]))
    assert estimated_seconds(text, MIB, has_placeholders=True) is None
    assert estimated_seconds(text, MIB) == 5.2e-3


def test_the_fixed_price_is_seen_with_other_work_meanwhile():
    text = dumped(schedule(5200, per_us=1, spans=[(8, 9), (9, 700), (700, 5007.6)]))
    assert estimated_seconds(text, MIB, has_placeholders=True) is None


def test_a_long_program_without_it_has_an_estimate():
    text = dumped(schedule(9000, per_us=1, spans=[(0, 4100), (4100, 4700), (4700, 9000)]))
    assert estimated_seconds(text, MIB, has_placeholders=True) == 9e-3


PLAIN, ASKED, BOTH = (
    Compiled("ok", scheduled_seconds=1.0),
    Compiled("ok", estimated_seconds=2.0),
    Compiled("ok", scheduled_seconds=3.0, estimated_seconds=4.0),
)


@pytest.mark.parametrize(
    "one, other, comparable, shown",
    [
        (PLAIN, BOTH, (1.0, 3.0), (1.0, 3.0)),
        (ASKED, BOTH, (2.0, 4.0), (2.0, 4.0)),
        (BOTH, BOTH, (3.0, 3.0), (3.0, 3.0)),
        (PLAIN, ASKED, None, (1.0, 2.0)),
        (BOTH, Compiled("ok"), None, (3.0, None)),
    ],
)
def test_two_programs_are_compared_by_estimates_that_were_made_in_the_same_way(one, other, comparable, shown):
    assert comparable_estimates(one, other) == comparable and shown_estimates(one, other) == shown


PRODUCTS = """hlo_module {
  name: "m"
  computations {
    name: "body"
    instructions {
      name: "fusion.1"
      opcode: "fusion"
      metadata {
        op_name: "dot"
      }
      id: 11
      called_computation_ids: 9
    }
    id: 3
  }
  computations {
    name: "main"
    instructions {
      name: "while.1"
      opcode: "while"
      id: 21
      called_computation_ids: 2
      called_computation_ids: 3
    }
    instructions {
      name: "fusion.2"
      opcode: "fusion"
      id: 22
    }
    id: 7
  }
  entry_computation_id: 7
}
"""


def timed(computation: int, *spans: tuple[int, float, float]) -> str:
    lines = ["computation_schedules {", f"  computation_id: {computation}"]
    for identifier, start, end in spans:
        lines += ["  instructions {", f"    id: {identifier}", f"    start_timestamp_cycles: {start}"]
        lines += [f"    end_timestamp_cycles: {end}", "    memory_usage_after: 5", "  }"]
    return "\n".join([*lines, "  cycles_per_microsecond: 1500", "}", ""])


def generated(**cycles: int) -> str:
    """Returns lines of a final program, with the price that the code generator gives instructions."""
    rows = [f'  %{name.replace("_", ".")} = f32[8] fusion(%a), backend_config={{"estimated_cycles":"{price}"}}'
            for name, price in cycles.items()]  # fmt: skip
    return "\n".join(["ENTRY %main {", *rows, "}"])


def test_a_price_far_above_that_of_the_code_generator_makes_an_estimate_missing():
    """A product with 16 heads, which runs as a convolution with windows that are padding but for one element."""
    text = PRODUCTS + timed(3, (11, 1, 34_800_001)) + timed(7, (21, 0, 139_200_000), (22, 139_200_000, 300_000_000))
    assert is_mispriced(text, generated(fusion_1=271_238, fusion_2=150_000_000))
    assert not is_mispriced(text, generated(fusion_1=8_000_000, fusion_2=150_000_000))
    assert not is_mispriced(text, generated(fusion_2=150_000_000))
    assert not is_mispriced(text, "")


def test_a_price_that_is_far_too_high_counts_with_the_turns_of_its_loop():
    once = timed(3, (11, 0, 1_000), (12, 1_000, 100_000))
    assert is_mispriced(PRODUCTS + once + timed(7, (21, 0, 8e6), (22, 8e6, 8.1e6)), generated(fusion_1=20)) is False
    often = timed(3, (11, 0, 5_000), (12, 5_000, 100_000))
    assert is_mispriced(PRODUCTS + often + timed(7, (21, 0, 8e6), (22, 8e6, 8.1e6)), generated(fusion_1=20))
    rarely = PRODUCTS + often + timed(7, (21, 0, 1e5), (22, 1e5, 8.1e6))
    assert not is_mispriced(rarely, generated(fusion_1=20))


@pytest.mark.parametrize(
    "ops, cycles, more, found",
    [
        (["dot"], 271_238, "", True),
        (["dot"], 8_000_000, "", False),
        (["other"], 20, "", False),
        (["dot", "dot"], 20, "", False),  # of two nobody knows which one it is
        (["dot"], 20, "  %fusion.1 = f32[8] fusion(%a), calls=%own\n", False),  # it is there, and has no price
    ],
)
def test_what_became_one_with_pieces_of_a_collective_is_known_by_its_op(ops, cycles, more, found):
    """The final program has it under another name."""
    pieces = "".join(
        f"""%async_collective_fusion.{number} (p: f32[8]) -> f32[8] {{
  %p = f32[8] parameter(0)
  ROOT %convolution.{number} = f32[8] convolution(%p, %p), metadata={{op_name="{op}"}}
}}
"""
        for number, op in enumerate(ops)
    )
    calls = more + "".join(
        f"""  %fusion.5{number} = f32[8] fusion(%a), calls=%async_collective_fusion.{number}, \
backend_config={{"estimated_cycles":"{cycles}"}}
"""
        for number in range(len(ops))
    )
    text = PRODUCTS + timed(3, (11, 1, 34_800_001)) + timed(7, (21, 0, 139_200_000), (22, 139_200_000, 300_000_000))
    assert is_mispriced(text, f"{pieces}ENTRY %main (a: f32[8]) -> f32[8] {{\n{calls}}}\n") is found


def test_without_an_entry_nothing_is_mispriced():
    assert not is_mispriced("", generated(fusion_1=1))


def test_instructions_for_free_take_the_one_cycle_that_any_takes():
    named = "".join(
        f'    instructions {{\n      name: "{name}"\n      opcode: "{name}"\n      id: {number}\n    }}\n'
        for number, name in enumerate(("reduce-scatter", "all-reduce", "fusion"))
    )
    spans = ((0, 1), (1, 300), (300, 301))
    timed = "".join(
        f"  instructions {{\n    id: {number}\n    start_timestamp_cycles: {start}\n"
        f"    end_timestamp_cycles: {end}\n  }}\n"
        for number, (start, end) in enumerate(spans)
    )
    text = f"hlo_module {{\n{named}}}\ncomputation_schedules {{\n  computation_id: 7\n{timed}}}\n"
    assert instructions_for_free(text) == {"reduce-scatter", "fusion"}
    assert instructions_for_free("") == frozenset()
