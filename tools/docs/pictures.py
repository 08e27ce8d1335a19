# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures that the documentation shows, docs/pictures/; screenshots only where a Chromium is installed."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import reshard

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "docs/pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

_ISSUE = {"source": '[{"y"}, {}, {"x"}]', "target": '[{}, {"x", "y"}, {}]', "mesh": "x=4,y=2", "shape": (256, 256, 256)}
_STRIPES = {
    "source": '[{"x"}, {}]',
    "target": '[{}, {"x"}]',
    "mesh": "x=16,y=4",
    "shape": (4096, 4096),
    "topology": "h100:8x8",
}
# The command that writes each page, and the width and height of its picture in pixels.
_OPT = ["reshard.tools.reshard_opt", "docs/tiny.mlir", "--compile-for=cpu:8", "--report=html"]
_TRAFFIC = ["reshard.tools.reshard", "traffic", "examples/llama_train_step.mlir", "--topology=h100:2x4"]
_PAGES = {
    "report": ([*_OPT, "--report-file={page}", "-o", "/dev/null"], (1180, 1800)),
    "traffic": ([*_TRAFFIC, "--html={page}"], (1640, 1500)),
}


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 1 if a picture is out of date with --check, else 0."""
    parser = argparse.ArgumentParser(prog="python -m reshard.tools.docs.pictures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; name the drawings that are out of date")
    flags = parser.parse_args(argv)
    outdated = {
        path: text
        for path, text in drawings().items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text() != text
    }
    for path, text in outdated.items():
        print(f"{path}: {'is out of date; run: python -m reshard.tools.docs.pictures' if flags.check else 'written'}")
        if not flags.check:
            (ROOT / path).parent.mkdir(exist_ok=True)
            (ROOT / path).write_text(text)
    if not flags.check:
        _screenshots()
    return 1 if flags.check and outdated else 0


def drawings() -> dict[str, str]:
    """Returns the drawings by their paths; they are the same on every machine."""
    site = reshard.visualize(reshard.plan(**_ISSUE))
    stripes = reshard.plan(**_STRIPES, memory_limit="14MiB")
    return {
        f"{FOLDER}/site.svg": site.svg("tiles"),
        f"{FOLDER}/memory.svg": reshard.visualize(stripes, topology="h100:8x8", memory_limit="14MiB").svg("memory"),
    }


def _screenshots() -> None:
    """Writes the pictures of pages, if there is a browser."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    for name, (command, (width, height)) in _PAGES.items():
        path = f"{FOLDER}/{name}.png"
        if browser is None:
            print(f"{path}: left as it is; it needs chromium")
            continue
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, f"{name}.html")
            arguments = [word.format(page=page) for word in command]
            subprocess.run([sys.executable, "-m", *arguments], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            shot = [
                browser,
                "--headless=new",
                "--disable-gpu",
                "--no-sandbox",
                "--hide-scrollbars",
                f"--user-data-dir={folder}/profile",
            ]
            shot += [f"--window-size={width},{height}", f"--screenshot={ROOT / path}", page.as_uri()]
            subprocess.run(shot, check=True, timeout=120, capture_output=True)
        print(f"{path}: written")


if __name__ == "__main__":
    sys.exit(main())
