# SPDX-License-Identifier: Apache-2.0
# Configuration of lit, for the source tree and any interpreter that has the dependencies:
#   python -c 'from lit.main import main; main()' test [--param tier=quick|slow|all] [--filter REGEX]
import importlib.util
import os
import sys

TIER = lit_config.params.get("tier", "quick")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lit_tiers import TieredShTest  # noqa: E402

config.name = "reshard"
config.test_format = TieredShTest(TIER)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs"]
config.test_source_root = os.path.dirname(os.path.abspath(__file__))
config.test_exec_root = os.path.join(
    ROOT, "build", f"test{os.path.basename(sys.prefix)}"
)  # test runs of several environments may run at the same time
if importlib.util.find_spec("flatbuffers"):  # jax.export needs this package for its files
    config.available_features.add("flatbuffers")
if TIER in ("slow", "all"):
    config.available_features.add("slow")

python = lit_config.params.get("python", sys.executable)
file_check = f'"{python}" -m filecheck --reject-empty-vars'
# lit sets its own PYTHONPATH for commands after its builtins `cat` and `diff`, so each command sets PYTHONPATH again.
in_tree = f'env PYTHONPATH="{ROOT}" "{python}"'
config.substitutions += [
    ("%reshard-opt", f"{in_tree} -m reshard.tools.reshard_opt"),
    ("%reshard", f"{in_tree} -m reshard.tools.reshard"),
    ("%python", in_tree),
    (r"\bFileCheck\b", file_check),
]
config.environment["JAX_PLATFORMS"] = "cpu"
config.environment["RESHARD_PROGRESS"] = "off"  # on a busy machine even short work takes long enough for progress lines
config.environment.update({name: os.environ[name] for name in ("HOME", "RESHARD_CACHE_DIR") if name in os.environ})
