# SPDX-License-Identifier: Apache-2.0
"""Completion of the commands' flags in shells; bash runs here, and for other shells the tests look at the text."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reshard.passes.driver import registry
from reshard.tools.commands.flags import make_parser
from reshard.tools.common.completion import SHELLS, script
from reshard.tools.opt import flags as reshard_opt_flags

ROOT = Path(__file__).resolve().parents[3]
PARSERS = {"reshard": make_parser(), "reshard-opt": reshard_opt_flags.make_parser()}
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@needs_bash
@pytest.mark.parametrize(
    "words, completions",
    [
        ("reshard pl", "plan place"),
        ("reshard plan --obj", "--objective"),
        ("reshard plan --objective ''", "time bytes"),
        ("reshard cache ''", "show clear plans results sites xla"),
        ("reshard cache clear res", "results"),
        ("reshard cache --h", "--help"),
        ("reshard --comp", "--completion"),
        ("reshard-opt --find", "--find-mismatches"),
        ("reshard-opt in.mlir --policy = b", "better"),
        ("reshard-opt in.mlir --mlir-timing-display ''", "tree list"),
        ("reshard-opt docs/tin", "docs/tiny.mlir"),
        ("reshard-opt -o docs/tin", "docs/tiny.mlir"),
    ],
)
def test_bash_completes(words, completions):
    tool = words.split()[0]
    function = re.sub(r"\W", "_", tool)
    ask = f'COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _{function}; echo "${{COMPREPLY[*]}}"'
    done = subprocess.run(
        ["bash", "-c", f"{script(PARSERS[tool], 'bash')}\n{ask}"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == (f"{completions}\n", "")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("tool", PARSERS)
def test_every_flag_is_completed(tool, shell):
    made = script(PARSERS[tool], shell)
    flags = [
        flag for action in PARSERS[tool]._actions for flag in action.option_strings if action.help != "==SUPPRESS=="
    ]
    prefix = "-l " if shell == "fish" else "--"
    for flag in flags:
        assert not flag.startswith("--") or re.search(rf"{prefix}{re.escape(flag[2:])}\b", made), flag
    assert tool == "reshard" or all(name in made for name in registry.PASSES)


def test_words_of_a_command_are_completed():
    assert "rest='*:value:(show clear plans results sites xla)' ;;" in script(PARSERS["reshard"], "zsh")
    fish = "complete -c reshard -n '__fish_seen_subcommand_from cache' -f -a 'show clear plans results sites xla'\n"
    assert fish in script(PARSERS["reshard"], "fish")


def test_quotes_and_brackets_of_help_do_not_end_a_word_of_zsh():
    for line in script(PARSERS["reshard-opt"], "zsh").splitlines():
        assert line.replace("'\\''", "").count("'") in (0, 2) or "specs '" in line, line


@pytest.mark.parametrize("module", ["reshard", "reshard_opt"])
def test_the_commands_print_it_without_mlir(module):
    program = f"import sys; sys.modules['jaxlib'] = None; from reshard.tools.{module} import main; "
    program += "sys.exit(main(sys.argv[1:]))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, "--completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stderr == "" and "complete -o filenames" in done.stdout
