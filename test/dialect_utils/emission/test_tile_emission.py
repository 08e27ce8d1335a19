# SPDX-License-Identifier: Apache-2.0
"""Islands: each operation of a tile program becomes the expected StableHLO ops."""

import re

import pytest

from reshard.dialect_utils.emission import tile_emission
from reshard.dialect_utils.emission.tile_emission import Mark, emit_island, unused_channels, write_program
from reshard.dialect_utils.ir.reductions import UnsupportedReduction
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.sdy_shardings import sharding_to_attr
from reshard.synthesis.forms.in_place import for_platform
from reshard.synthesis.forms.platforms import CPU, TPU
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.programs.tile_program import Gather, Loop, Swap, Transpose

ELEMENTS = {"f32": 32, "bf16": 16, "i1": 8, "i4": 4, "ui4": 4, "complex<f32>": 64, "f8E4M3FN": 8}


def island(
    mesh: str,
    shape,
    source: str,
    target: str,
    *,
    element: str = "f32",
    inline: bool = False,
    before: str = "",
    debug: bool = False,
    limit: int | None = None,
    platform: str = CPU,
) -> str:
    """Returns a verified module whose function converts its argument in one island."""
    mesh = Mesh.parse(mesh)
    found = plan(mesh, shape, ELEMENTS[element], Sharding.parse(source), Sharding.parse(target), memory_limit=limit)
    type_text = f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(
            f"""module {{
              sdy.mesh @mesh = {mesh}
              func.func @main(%arg0: {type_text}) -> {type_text} {{
                {before}
                return %arg0 : {type_text}
              }} }}"""
        )
        block = module.body.operations[1].regions[0].blocks[0]
        reference = ir.Attribute.parse(f"#sdy.mesh{mesh}") if inline else "mesh"
        attrs = [sharding_to_attr(side, reference) for side in (found.source, found.target)]
        users_line = ir.Location.file("model.py", 12, 3)
        with ir.InsertionPoint(block.operations[len(block.operations) - 1]):
            mark = Mark(unused_channels(module), "reshard/7", users_line, platform)
            op = emit_island(found.tile_program, block.arguments[0], *attrs, mark)
        block.operations[len(block.operations) - 1].operation.operands[0] = op.results[0]
        assert module.operation.verify()
        return module.operation.get_asm(enable_debug_info=debug)


def ops_of(text: str) -> list[str]:
    """Returns the StableHLO ops in the order of the text."""
    return re.findall(r"stablehlo\.([a-z_]+)[ \"]", text.split("sdy.manual_computation")[1])


def attribute(text: str, name: str) -> str:
    return re.search(rf"{name} = (dense<.*?>) :", text)[1]


def test_worked_example_i():
    text = island("x=4,y=2", (16, 16, 16), '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]')
    assert ops_of(text) == ["reshape", "transpose", "reshape", "all_to_all", "reshape", "transpose", "reshape"]
    assert 'in_shardings=[<@mesh, [{"y"}, {}, {"x"}]>] out_shardings=[<@mesh, [{}, {"x", "y"}, {}]>]' in text
    assert 'manual_axes={"x", "y"} (%arg1: tensor<8x16x4xf32>)' in text
    assert "split_count = 8" in text
    assert attribute(text, "replica_groups") == "dense<[[0, 1, 2, 3, 4, 5, 6, 7]]>"


def test_nothing_to_do_is_an_island_that_returns_its_argument():
    text = island("x=2", (4,), '[{"x"}]', '[{"x"}]')
    assert ops_of(text) == []
    assert "sdy.return %arg1 : tensor<2xf32>" in text


def test_slices_compute_the_coordinate_from_the_partition_id():
    text = island("x=2,y=3,z=2", (12, 4), "[{}, {}]", '[{"y"}, {}]')
    assert ops_of(text) == [
        "reshape",
        "partition_id",
        "constant",
        "divide",
        "constant",
        "remainder",
        "constant",
        "constant",
        "dynamic_slice",
        "reshape",
    ]
    assert re.findall(r"constant dense<(\d+)>", text)[:2] == ["2", "3"]  # divided by z, modulo y; no table


def test_the_major_axis_needs_no_remainder_and_the_minor_no_division():
    major = island("x=2,y=3", (12,), "[{}]", '[{"x"}]')
    minor = island("x=2,y=3", (12,), "[{}]", '[{"y"}]')
    assert "stablehlo.remainder" not in major and "stablehlo.divide" in major
    assert "stablehlo.divide" not in minor and "stablehlo.remainder" in minor


def test_sub_axes_divide_by_what_is_minor_in_the_axis():
    text = island("x=8,y=2", (8,), "[{}]", '[{"x":(2)2}]')
    assert "stablehlo.constant dense<4> : tensor<ui32>" in text  # 2 in x, 2 in y
    assert "stablehlo.constant dense<2> : tensor<ui32>" in text  # its size


def test_device_order_is_a_table_of_positions():
    text = island('<["x"=2, "y"=2], device_ids=[3, 1, 0, 2]>', (4,), "[{}]", '[{"x"}]')
    assert "dense<[2, 1, 3, 0]> : tensor<4xui32>" in text


def test_one_coordinate_is_computed_once():
    text = island("x=2,y=2", (8, 8), "[{}, {}]", '[{"x"}, {"y"}]')
    assert ops_of(text).count("dynamic_slice") == 1


def test_groups_follow_the_device_order():
    row_major = island("x=2,y=2", (4,), '[{"x"}]', "[{}]")
    shuffled = island('<["x"=2, "y"=2], device_ids=[3, 1, 0, 2]>', (4,), '[{"x"}]', "[{}]")
    assert attribute(row_major, "replica_groups") == "dense<[[0, 2], [1, 3]]>"
    assert attribute(shuffled, "replica_groups") == "dense<[[3, 0], [1, 2]]>"


def test_groups_of_a_sub_axis():
    text = island("x=8", (8,), '[{"x":(2)2}]', "[{}]")
    assert attribute(text, "replica_groups") == "dense<[[0, 2], [1, 3], [4, 6], [5, 7]]>"


def test_chunks_are_a_while_that_updates_the_result_in_place():
    """The loop carries a counter, the source tile and the result; XLA would refuse values from outside of the loop."""
    text = island("x=4", (16, 16), '[{"x"}, {}]', '[{}, {"x"}]', limit=768)
    assert text.count("stablehlo.while") == 1
    assert "tensor<i32>, tensor<4x16xf32>, tensor<4x4x4xf32>" in text
    body = text.split(" do {")[1]
    assert "dynamic_slice" in body and "all_to_all" in body and "dynamic_update_slice" in body
    assert "sizes = [2, 16]" in body  # two of four rows
    names = set(re.findall(r"%\w+", body.split("stablehlo.return")[0]))
    own = set(re.findall(r"(%\w+) = ", body)) | set(re.findall(r"%iterArg\w*", text))
    assert names <= own


def test_coordinates_are_computed_inside_of_a_loop_that_needs_them():
    text = island("x=2,y=2", (32, 32), '[{"x"}, {}]', '[{}, {"y", "x"}]', limit=4480)
    inside = text.split(" do {")[1].split("stablehlo.return")[0]
    assert "partition_id" in inside and text.count("partition_id") == 1


@pytest.mark.parametrize(
    "mesh, shape, source, target, limit",
    [
        ("x=2,y=2,z=2", (32, 16, 32), '[{}, {"x"}, {}]', '[{}, {}, {"z"}]', 91750),
        ("x=2,y=2", (16, 8, 32), '[{}, {"x"}, {}]', '[{"y"}, {}, {}]', 22937),
        ("x=4,y=2", (16, 16, 32), '[{"y", "x"}, {}, {}]', '[{"y"}, {"x"}, {}]', 13107),
        ("x=4,y=2", (16, 32, 16), '[{}, {"x"}, {}]', '[{"y"}, {}, {"x"}]', 16384),
        ("x=2,y=2", (16, 16, 32), '[{}, {}, {"y", "x"}]', '[{}, {"x"}, {}]', 39321),
    ],
)
def test_the_body_of_a_loop_is_brought_into_the_form_of_a_platform_once(mesh, shape, source, target, limit):
    """A form that is made of another form has the digits in the wrong order."""
    found = plan(Mesh.parse(mesh), shape, 32, Sharding.parse(source), Sharding.parse(target), memory_limit=limit)
    loop = next(each for each in for_platform(found.tile_program, TPU, 32).operations if isinstance(each, Loop))
    axes = [each.axis for each in loop.body.operations if isinstance(each, Gather | Swap)]
    text = island(mesh, shape, source, target, limit=limit, platform=TPU).split(" do {")[1]
    assert list(map(int, re.findall(r"(?:all_gather_dim|split_dimension) = (\d+)", text))) == axes
    transposes = [each for each in loop.body.operations if isinstance(each, Transpose)]
    assert text.count("stablehlo.transpose") == len(transposes)


def test_gather_along_dimension_0_is_one_op():
    text = island("x=4", (8, 3), '[{"x"}, {}]', "[{}, {}]")
    assert ops_of(text) == ["all_gather"]
    assert "use_global_device_ids" in text


def test_permute_pairs():
    text = island("x=2,y=2", (4,), '[{"x", "y"}]', '[{"y", "x"}]')
    assert ops_of(text) == ["collective_permute"]
    assert attribute(text, "source_target_pairs") == "dense<[[0, 0], [1, 2], [2, 1], [3, 3]]>"


def test_channels_are_not_those_of_the_module():
    other = """%c = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 41, type = 1>,
      replica_groups = dense<[[0], [1], [2], [3]]> : tensor<4x1xi64>, use_global_device_ids}> : (tensor<8x8xf32>) -> tensor<8x8xf32>"""  # noqa: E501
    text = island("x=2,y=2", (8, 8), '[{"x"}, {"y"}]', "[{}, {}]", before=other)
    assert re.findall(r"handle = (\d+)", text) == ["41", "42", "43"]


def test_two_islands_share_no_channel():
    with make_context(), ir.Location.unknown():
        channels = unused_channels(ir.Module.parse("module {}"))
        assert [next(channels), next(channels)] == [1, 2]


def test_locations_name_site_and_step_over_the_users_line():
    text = island("x=4,y=2", (16, 16, 16), '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]', debug=True)
    names = set(re.findall(r'loc\("(reshard/7[^"]*)"\(#loc\d*\)\)', text))
    assert names == {"reshard/7", "reshard/7/relayout", "reshard/7/all_to_all"}
    assert 'loc("model.py":12:3)' in text


def test_inlined_meshes():
    text = island("x=2", (4, 4), '[{"x"}, {}]', '[{}, {"x"}]', inline=True)
    assert 'in_shardings=[<mesh<["x"=2]>, [{"x"}, {}]>]' in text


def test_axes_of_size_1_are_manual_too():
    text = island("x=2,one=1", (4,), '[{"x", "one"}]', "[{}]")
    assert 'manual_axes={"x", "one"}' in text
    assert ops_of(text) == ["all_gather"]


def test_rank_0_and_one_device():
    assert ops_of(island("x=2", (), "[]", "[]")) == []
    assert ops_of(island("x=1", (4,), '[{"x"}]', "[{}]")) == []


def test_arrays_without_elements():
    assert ops_of(island("x=4,y=2", (0, 4), '[{"x"}, {}]', '[{}, {"y"}]')) == ["reshape"]


@pytest.mark.parametrize("element", ELEMENTS)
def test_element_types_are_kept(element):
    text = island("x=2,y=2", (8, 8), '[{"x"}, {}]', '[{"y"}, {"x"}]', element=element)
    assert set(re.findall(r"tensor<(?:\d+x)+([^>]*?>?)>", text.split("sdy.manual_computation")[1])) >= {element}


# -- in place --


def test_gather_in_place_is_one_op():
    text = island("x=4", (8, 16), '[{}, {"x"}]', "[{}, {}]", platform=TPU)
    assert ops_of(text) == ["all_gather"]
    assert "all_gather_dim = 1" in text


def test_all_to_all_in_place_splits_and_joins_one_axis():
    text = island("x=4", (8, 16), '[{"x"}, {}]', '[{}, {"x"}]', platform=TPU)
    assert ops_of(text) == ["reshape", "all_to_all", "transpose", "reshape"]
    assert "split_dimension = 1" in text and "concat_dimension = 1" in text and "split_count = 4" in text


def test_slice_in_place_takes_a_part_of_the_dimension():
    text = island("x=2,y=3", (4, 12), "[{}, {}]", '[{}, {"x"}]', platform=TPU)
    assert "sizes = [4, 6] : (tensor<4x12xf32>" in text and "reshape" not in ops_of(text)
    assert ops_of(text).count("multiply") == 1  # the coordinate times 6


def test_barriers_are_for_platforms_that_need_them():
    arguments = "x=4", (16, 4), '[{}, {"x"}]', '[{"x"}, {}]'
    assert "optimization_barrier" in ops_of(island(*arguments))
    assert "optimization_barrier" not in ops_of(island(*arguments, platform=TPU))


# -- partial sums --


def body(mesh: str, shape, source: str, target: str, element: str, reduction: str, platform: str = CPU) -> str:
    """Returns the text of a verified function that runs the plan on its argument, which is one tile."""
    found = plan(
        Mesh.parse(mesh), shape, ELEMENTS[element], Sharding.parse(source), Sharding.parse(target), reduction=reduction
    )
    before, after = (
        f"tensor<{''.join(f'{size}x' for size in tile)}{element}>"
        for tile in (found.tile_program.in_shape, found.tile_program.out_shape)
    )
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(f"func.func private @end({after})\nfunc.func @tile(%arg0: {before}) {{ return }}")
        block = module.body.operations[1].regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(block):
            mark = Mark(unused_channels(module), "reshard", ir.Location.unknown(), platform)
            tile = write_program(found.tile_program, block.arguments[0], mark)
            ir.Operation.create("func.call", operands=[tile], attributes={"callee": ir.FlatSymbolRefAttr.get("end")})
        assert module.operation.verify()
        return str(module)


ALL_REDUCE = ("x=2,y=2", (8, 4), '[{"y"}, {}], unreduced={"x"}', '[{"y"}, {}]')
REDUCE_SCATTER = ("x=2,y=2", (8, 4), '[{}, {"y"}], unreduced={"x"}', '[{"x"}, {"y"}]')
TO_UNREDUCED = ("x=2,y=2", (8, 4), '[{"x"}, {}]', '[{}, {}], unreduced={"x", "y"}')


def test_all_reduce_and_its_region():
    text = body(*ALL_REDUCE, "f32", "sum")
    assert re.findall(r"stablehlo\.\w+", text) == [
        "stablehlo.all_reduce",
        "stablehlo.channel_handle",
        "stablehlo.add",
        "stablehlo.return",
    ]
    assert attribute(text, "replica_groups") == "dense<[[0, 2], [1, 3]]>"
    assert "use_global_device_ids" in text and "(tensor<4x4xf32>) -> tensor<4x4xf32>" in text


def test_reduce_scatter_is_on_the_leading_axis():
    text = body(*REDUCE_SCATTER, "f32", "max")
    assert "scatter_dimension = 0" in text and "(tensor<2x4x2xf32>) -> tensor<1x4x2xf32>" in text
    assert "stablehlo.maximum" in text and attribute(text, "replica_groups") == "dense<[[0, 2], [1, 3]]>"


def test_reduce_scatter_in_place_is_of_the_whole_dimension():
    text = body("x=2,y=2", (8, 4), '[{"y"}, {}], unreduced={"x"}', '[{"y"}, {"x"}]', "f32", "sum", TPU)
    assert "scatter_dimension = 1" in text and "(tensor<4x4xf32>) -> tensor<4x2xf32>" in text


def test_to_unreduced_puts_the_tile_among_zeros_and_zeros_on_all_replicas_but_one():
    text = body(*TO_UNREDUCED, "f32", "sum")
    names = re.findall(r"stablehlo\.(\w+)", text)
    assert "select" in names and "dynamic_update_slice" in names and not {"all_reduce", "all_gather"} & set(names)
    assert re.findall(r"dense<([\d.e+]+)> : tensor<(\w+)f32>", text) == [
        ("0.000000e+00", "4x4x"),
        ("0.000000e+00", "2x4x4x"),
    ]


@pytest.mark.parametrize(
    ("element", "reduction", "neutral"),
    [
        ("bf16", "max", "0xFF80"),
        ("f32", "min", "0x7F800000"),
        ("f8E4M3FN", "sum", "0.000000e+00"),
        ("i4", "max", "-8"),
        ("ui4", "max", "0"),
        ("ui4", "min", "15"),
        ("i1", "and", "true"),
        ("i1", "or", "false"),
    ],
)
def test_the_neutral_element_of_a_reduction(element, reduction, neutral):
    text = body(*TO_UNREDUCED, element, reduction)
    assert f"dense<{neutral}> : tensor<4x4x{element}>" in text


@pytest.mark.parametrize(
    ("element", "reduction"), [("f32", "and"), ("i4", "or"), ("i1", "sum"), ("i1", "prod"), ("complex<f32>", "max")]
)
def test_reductions_that_elements_do_not_have(element, reduction):
    for pair in (ALL_REDUCE, TO_UNREDUCED):
        with pytest.raises(UnsupportedReduction, match=f"have no {reduction}"):
            body(*pair, element, reduction)


def test_the_neutral_element_of_complex_numbers_is_real():
    text = body(*TO_UNREDUCED, "complex<f32>", "prod")
    assert re.findall(r"dense<([\d.e+]+)> : tensor<4x4xf32>", text) == ["1.000000e+00", "0.000000e+00"]
    assert "stablehlo.multiply" in body(*ALL_REDUCE, "complex<f32>", "prod")


def test_elements_without_an_infinity_are_reduced_but_not_padded():
    assert "stablehlo.minimum" in body(*ALL_REDUCE, "f8E4M3FN", "min")
    with pytest.raises(UnsupportedReduction, match="they have no infinity"):
        body(*TO_UNREDUCED, "f8E4M3FN", "min")


@pytest.mark.parametrize(("op", "is_as_it_came"), [("slice %p [0:6]", True), ("tanh %p", False)])
def test_what_is_only_cut_and_padded_behind_an_all_to_all_is_as_it_came(op, is_as_it_came):
    """A barrier keeps XLA from handing parts of the one on to the next: its verifier refuses that."""
    size = 6 if is_as_it_came else 8
    text = f"""func.func @main(%a: tensor<8xf32>) -> tensor<2x4xf32> {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = "stablehlo.all_to_all"(%a) <{{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64,
        replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}}> : (tensor<8xf32>) -> tensor<8xf32>
      %p = stablehlo.pad %0, %zero, low = [0], high = [0], interior = [0]
        : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
      %1 = stablehlo.{op} : {"(tensor<8xf32>) -> " if is_as_it_came else ""}tensor<{size}xf32>
      %2 = stablehlo.pad %1, %zero, low = [0], high = [{8 - size}], interior = [0]
        : (tensor<{size}xf32>, tensor<f32>) -> tensor<8xf32>
      %3 = stablehlo.reshape %2 : (tensor<8xf32>) -> tensor<2x4xf32>
      return %3 : tensor<2x4xf32>
    }}"""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        *_, last, _ = module.body.operations[0].operation.regions[0].blocks[0].operations
        assert tile_emission._is_as_it_came(last.operation.results[0]) is is_as_it_came
