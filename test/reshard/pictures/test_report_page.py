# SPDX-License-Identifier: Apache-2.0
"""Report pages show all the data, as a page and as text; every name in a module stays plain text."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import reshard
from reshard.compiling.optimizing import Report
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.driver.base import RunOptions, RunResults, Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import report as rows
from reshard.pictures import explain_page, report_page
from reshard.synthesis.network.topology import Topology
from reshard.tools import reshard as tool

ROOT = Path(__file__).resolve().parents[3]
EVIL = """</style></script><script>alert('x')</script><img src=x onerror=alert(1)>&amp;\x01"onload="alert(2)"""
ALLOWED = set(
    "html head meta title style body svg defs pattern main script section details summary h1 h2 h3 h4 p span b "
    "strong small code pre a div dl dt dd "
    "table caption thead tbody tr th td figure figcaption input button output g rect text tspan line path circle "
    "iframe".split()
)  # fmt: skip


class Reader(HTMLParser):
    """Collects the tags, the names of attributes, and the text of scripts."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.attributes, self.scripts, self._in_script = [], set(), [], False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}
        self._in_script = tag == "script"

    def handle_data(self, data):
        if self._in_script:
            self.scripts.append(data)
        self._in_script = False


def text_module(name: str, file: str) -> str:
    quoted = json.dumps(file)
    return f"""
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%arg0: tensor<16x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}} loc({quoted}))
    -> (tensor<16x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}) {{
  %1 = sdy.sharding_constraint %arg0 <@mesh, [{{}}, {{"x"}}]> : tensor<16x16xf32> loc({quoted}:8:3)
  return %1 : tensor<16x16xf32>
}}
"""


def report_of(text: str, *options: str) -> dict:
    session = Session(RunOptions(with_provenance=True))
    with make_context() as context, ir.Location.unknown(context):
        Pipeline.parse(
            f"builtin.module(find-mismatches,plan-sites{{policy=always layout-check=off {' '.join(options)}}},"
            "synthesize-collectives)"
        ).run(ir.Module.parse(text), session)
    return rows.as_dict(session)


@pytest.fixture(scope="module")
def plain():
    return report_of(text_module("plain", "model.py"))


def test_page_has_all_parts(plain):
    page = report_page.page_of(plain, "model.mlir")
    for part in (
        "Site 0: sdy.sharding_constraint (constraint)",
        "model.py:8:3",
        "Who asked for these layouts",
        "Memory per device",
        "Rejected alternatives",
        "rewritten",
        "argument 0 of @main, model.py",
    ):
        assert part in page, part
    assert set(Reader(page).tags) <= ALLOWED


def test_text_says_what_the_page_says(plain):
    text = report_page.text_of(plain, "model.mlir")
    for part in (
        "reshard report: model.mlir",
        "1 of 1 site rewritten",
        "---- site 0: sdy.sharding_constraint (constraint): rewritten",
        "A0 / B0 / C0 / D0  on 0 1",
    ):
        assert part in text, part
    assert "source x: asked for by argument 0 of @main, model.py" in text
    assert "target x: asked for by this constraint at model.py:8:3" in text
    assert "this plan" in text and "exchange alone" in text and "peak " in text and "traffic, in bytes" in text


def test_names_of_a_module_stay_text(plain):
    calm = Reader(report_page.page_of(plain, "model.mlir"))
    evil = report_of(text_module("evil", "</script><script>alert(1)</script>\"'&<b onclick=x>.py"))
    page = report_page.page_of(evil, EVIL)
    found = Reader(page)
    assert found.tags == calm.tags and found.attributes == calm.attributes and found.scripts == calm.scripts
    assert "&lt;script&gt;alert(1)" in page and "\x01" not in page


def test_names_of_axes_stay_text():
    mesh = {"</text><script>alert(1)</script>": 2, "\"'&": 2}
    planned = reshard.plan(
        reshard.Sharding((_axes(mesh, 0), ())),
        reshard.Sharding(((), _axes(mesh, 1))),
        mesh=reshard.Mesh.of(mesh),
        shape=(4, 4),
    )
    found = reshard.visualize(planned)
    ElementTree.fromstring(found.svg())
    assert "<script>alert" not in found.svg() + found.html() + found._repr_html_()
    page = explain_page.page_of(planned, Topology.parse("uniform").fitted(4), (), EVIL)
    assert len(Reader(page).scripts) == 1 and set(Reader(page).tags) <= ALLOWED


def _axes(mesh, number):
    return (reshard.AxisRef(list(mesh)[number]),)


def test_page_may_not_reach_the_network(plain):
    page = report_page.page_of(plain, "model.mlir")
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert not re.search(r"https?://|@import|url\((?!#)", page.replace("http://www.w3.org/2000/svg", ""))


def test_module_without_sites_has_a_page():
    empty = {
        "sites": [],
        "totals": {"sites": 0, "rewritten": 0, "left": 0, "stock_bytes": 0, "our_bytes": 0},
        "checks": [],
        "remarks": [],
    }
    assert "No site: every value is used in the layout" in report_page.page_of(
        empty, "a"
    ) and "No site" in report_page.text_of(empty, "a")


def test_sites_without_a_plan_have_a_reason(plain):
    row = plain["sites"][0] | {
        "problem": None,
        "chain": None,
        "is_rewritten": False,
        "reason": "no chain: because",
        "bytes_received": None,
    }
    page = report_page.page_of(plain | {"sites": [row]}, "a")
    assert "left to XLA: no chain: because" in page and 'type="range"' not in page


def test_equal_conversions_are_drawn_once(plain):
    sites = [plain["sites"][0] | {"site": number} for number in range(3)]
    page = report_page.page_of(plain | {"sites": sites}, "a")
    assert page.count('type="range"') == 1 and page.count("The same conversion as") == 2
    assert report_page.text_of(plain | {"sites": sites}, "a").count("the same conversion as site 0") == 2


def test_sites_decided_together_have_one_figure(plain):
    sites = [plain["sites"][0] | {"site": number, "stock_bytes": 4097, "our_bytes": 129} for number in range(2)]
    report = plain | {"sites": sites}
    page = report_page.page_of(report, "a").partition("</table>")[0]
    assert page.count('title="4,097 bytes"') == page.count('title="129 bytes"') == 1
    assert 'with <a href="#card-0">0</a>' in page and "alone: stock" in page
    assert "site 1; one figure for all of them" in report_page.text_of(report, "a")


def test_a_module_that_was_not_compiled_says_so_first(plain):
    for made in (report_page.page_of, report_page.text_of):
        said = made(plain, "a")
        assert said.index("The whole module: nothing measured; ") < said.index("1 of 1 site rewritten")


def test_layouts_stand_beside_their_spelling_in_jax(plain):
    assert "P(&#x27;x&#x27;, None)" in report_page.page_of(plain, "a").partition("</table>")[0]
    assert "P('x', None) to P(None, 'x')" in report_page.text_of(plain, "a")


def test_remarks_are_summed_up_and_listed_on_demand(plain):
    remarks = [f"a.py:{line}:1: remark: operand 0 of add is left alone: no" for line in range(3)]
    reasons = [{"reason": "no", "count": 3, "is_left_alone": True, "first": remarks[0]}]
    report = plain | {"remarks": remarks, "reasons": reasons}
    assert "3 remarks: no" in report_page.text_of(report, "a") and remarks[1] not in report_page.text_of(report, "a")
    assert remarks[1] in report_page.text_of(report, "a", "all")
    page = report_page.page_of(report, "a")
    assert '<td class="n">3</td><td>no</td>' in page and remarks[1] in page.partition("<details><summary>3 remarks")[2]


def test_stock_failures_are_said(plain):
    check = {
        "stock": {"status": "aborted", "bytes_received": None, "temp_bytes": None, "collectives": {}},
        "ours": {"status": "ok", "bytes_received": 10, "temp_bytes": 20, "collectives": {"all_to_all": 1}},
        "dropped": [{"sites": [3], "problem": "temporaries in bytes 1 -> 2"}],
        "is_rewritten": True,
    }
    for made in (report_page.page_of, report_page.text_of):
        said = made(plain | {"checks": [check]}, "a")
        assert (
            "Stock XLA does not compile the module as it came (aborted)" in said
            and "temporaries in bytes 1 -&gt; 2" in said.replace("->", "-&gt;")
        )


def test_where_the_bytes_go_is_told_with_links_to_the_sites(plain):
    side = {"status": "ok", "bytes_received": 10, "temp_bytes": 20, "collectives": {"all_to_all": 1}}
    row = {"seconds": 1e-6, "bytes_received": 10, "bound_bytes": 5, "times_bound": 2.0, "runs": 1, "kind": "all_to_all",
           "tile": "f32[8]", "location": "a.py:1:1", "why": "site 0: because", "site": 0}  # fmt: skip
    rows = [row, {**row, "why": "site 7: of no card", "site": 7}]
    rest = {"collectives": 3, "seconds": 1e-6, "bytes_received": 1}
    ledger = {"seconds": 2e-6, "bytes_received": 10, "collectives": rows, "rest": rest}
    traffic = {"topology": "h100, 8 gpu", "stock": ledger, "ours": None}
    check = {"stock": side, "ours": side, "dropped": [], "is_rewritten": True, "traffic": traffic}
    page, text = (made(plain | {"checks": [check]}, "a") for made in (report_page.page_of, report_page.text_of))
    assert "Where the bytes go" in page and "modelled on h100, 8 gpu" in page
    assert '<a href="#card-0">site 0: because</a>' in page and 'id="card-0"' in page
    assert "site 7: of no card" in page and "#card-7" not in page
    assert "where the bytes go" in text and "reshard traffic a lists the rest" in text and "2.00" in text


def test_a_module_left_whole_says_why(plain):
    empty = {"sites": [], "totals": plain["totals"] | {"sites": 0}, "checks": [], "remarks": []}
    for made in (report_page.page_of, report_page.text_of):
        said = made(empty | {"warnings": ["step is left to XLA in all processes: because"]}, "a")
        assert "left to XLA in all processes: because" in said and "No site" not in said


def test_numbers_of_a_target_ahead_of_time_are_shown(plain):
    side = {"status": "ok", "bytes_received": 10, "temp_bytes": 20, "collectives": {"all_to_all": 1}, "message": ""}
    ours = side | {"peak_memory_bytes": 1234567, "estimated_seconds": 3.21e-5, "argument_bytes": None}
    check = {
        "target": "tpu:v5e:2x4",
        "stock": ours | {"peak_memory_bytes": 2345678},
        "ours": ours,
        "dropped": [],
        "is_rewritten": True,
    }
    for made in (report_page.page_of, report_page.text_of):
        said = made(plain | {"checks": [check]}, "a")
        for part in ("tpu:v5e:2x4", "peak memory, bytes per device", "2,345,678", "1,234,567", "32.1"):
            assert part in said, part
        assert "arguments, bytes" not in said and "why it does not compile" not in said


def test_problem_gives_the_same_plan_again(plain):
    (row,) = plain["sites"]
    assert report_page.planned_again(row["problem"]).chain_text == row["chain"]
    assert report_page.planned_again(json.loads(json.dumps(row["problem"]))).bytes_received == row["bytes_received"]


def test_report_of_a_result_shows_itself_in_notebooks(plain):
    shown = Report(Session(results=RunResults(report_rows=plain["sites"])))._repr_html_()
    assert shown.startswith('<iframe title="reshard" sandbox="allow-scripts"') and "1 of 1 site rewritten" in shown


# ---- commands


PROBLEM = ["--mesh", "x=4,y=2", "--type", "f32[64,64]", "--from", '[{"x"}, {}]', "--to", '[{}, {"x"}]']


def test_explain_writes_page_and_picture(tmp_path, capsys):
    page, picture = tmp_path / "a.html", tmp_path / "a.svg"
    assert tool.main(["explain", *PROBLEM, "--html", str(page), "--svg", str(picture), "--topology", "h100:2x4"]) == 0
    words = capsys.readouterr().out
    assert words.startswith("f32[64,64] on") and "why  this chain" in words
    assert set(Reader(page.read_text()).tags) <= ALLOWED and "node, switch, 50 GB/s" in page.read_text()
    assert "In words" in page.read_text() and "why  this chain" in page.read_text()
    ElementTree.parse(picture)


def test_page_on_standard_output_is_in_place_of_the_text(capsys):
    assert tool.main(["explain", *PROBLEM, "--html", "-"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("<!doctype html>") and out.endswith("</html>\n")


def test_trace_of_plan(tmp_path, capsys):
    assert tool.main(["plan", *PROBLEM, "--trace", str(tmp_path / "a.json")]) == 0
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["otherData"]["chain"] == "all_to_all x: dim 0 -> 1"


@pytest.mark.parametrize(("command", "flag"), [("explain", "--html"), ("explain", "--svg"), ("plan", "--trace")])
def test_a_file_that_cannot_be_written_is_one_line(command, flag, capsys, tmp_path):
    assert tool.main([command, *PROBLEM, flag, str(tmp_path / "no" / "such")]) == 1
    assert re.fullmatch(r"reshard: error: .*/no/such: no such directory: .*/no\n", capsys.readouterr().err)


def test_plans_are_drawn_without_jax_and_mlir():
    script = (
        "import sys, reshard; reshard.visualize(reshard.plan('[{\"x\"}]', '[{}]', mesh='x=2', "
        "shape=(4,))).html(); print(sorted({'jax', 'jaxlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("options", [("topology=ethernet:2x4",), ("topology=h100", "memory-limit=1000"), ()])
def test_a_plan_for_a_network_and_a_limit_is_made_again_for_them(options):
    (row,) = report_of(text_module("plain", "model.py"), *options)["sites"]
    found = report_page.planned_again(json.loads(json.dumps(row["problem"])))
    assert (found.chain_text, found.bytes_received) == (row["chain"], row["bytes_received"])
    assert found.request.memory_limit == (1000 if len(options) > 1 else None)
    assert found.topology == (options[0].partition("=")[2] if options else "uniform")
