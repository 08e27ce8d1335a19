# SPDX-License-Identifier: Apache-2.0
"""Programs that XLA compiles for CPU devices but cannot run."""

import pytest

from reshard.dialect_utils.xla.child import XlaChild
from reshard.dialect_utils.xla.cpu_failures import why_not_run

# A transpose before an FFT: XLA stores the result of the transpose in the layout that saves a copy.
REFUSED = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<8x4x2xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>})
    -> (tensor<8x4x2xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}) {
  %0 = sdy.sharding_constraint %a <@mesh, [{"x"}, {}, {}]> : tensor<8x4x2xcomplex<f32>>
  %1 = stablehlo.fft %0, type = FFT, length = [2] : (tensor<8x4x2xcomplex<f32>>) -> tensor<8x4x2xcomplex<f32>>
  return %1 : tensor<8x4x2xcomplex<f32>>
}
"""


@pytest.mark.parametrize(
    "text, reason",
    [
        ("%a = c64[4,8]{1,0} copy(%x)\n%b = c64[4,8]{1,0} fft(%a), fft_type=FFT", ""),
        ("%a = c64[4,8]{0,1} copy(%x)\n%b = c64[4,8]{1,0} fft(%a), fft_type=FFT", "fft of c64[4,8]{0,1}"),
        ("%a = c64[4,8]{1,0} copy(%x)\n%b = c64[4,8]{0,1} fft(c64[4,8]{1,0} %a), fft_type=FFT", "fft of c64[4,8]{0,1}"),
        ("a.1 = c64[2,4,8]{2,1,0:T(8)} copy(x)\nROOT b = c64[2,4,8]{2,1,0} fft(a.1), fft_type=FFT", ""),
    ],
)
def test_an_fft_in_another_layout_than_row_by_row_does_not_run(text, reason):
    assert why_not_run(text).startswith(reason) and bool(why_not_run(text)) == bool(reason)


def test_the_child_says_of_a_program_that_compiles_whether_it_runs():
    with XlaChild(uses_cache=False) as child:
        compiled, ran = child.compile(REFUSED, 2), child.run(REFUSED, None, 2)
    assert compiled.is_ok == (ran.status == "ok"), (compiled.message, ran.message)
