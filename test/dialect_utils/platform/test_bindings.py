# SPDX-License-Identifier: Apache-2.0
"""The modules that are loaded with the bindings."""

import subprocess
import sys


def test_numpy_is_loaded_once_the_bindings_use_it():
    program = """
import sys
from reshard.dialect_utils.platform.bindings import ir, make_context
assert "numpy" not in sys.modules
with make_context():
    attr = ir.AttrBuilder.get("I64ElementsAttr")([1, 2], ir.Context.current)
    assert str(attr) == "dense<[1, 2]> : tensor<2xi64>", attr
import numpy
assert numpy.arange(2).sum() == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)
