# SPDX-License-Identifier: Apache-2.0
"""The store on disk that all caches share: fingerprints, damage, limits, several processes, foreign files."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reshard.dialect_utils.xla.child import ANSWERS
from reshard.passes.driver.stores import RESULTS, SITES
from reshard.synthesis.common import store
from reshard.synthesis.common.store import Limits, Store
from reshard.synthesis.planner.plan_cache import PLANS

ROOT = Path(__file__).resolve().parents[3]
CACHES = {each.kind: each for each in (PLANS, RESULTS, SITES, ANSWERS)}
KEY, OTHER = store.key("one"), store.key("another")


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def kept(root) -> Store:
    """A small cache whose version depends on no sources."""
    return Store("plans", Limits(entry_bytes=1_000, entries=3, total_bytes=10_000, versions=2), (), root=root)


def path_of(cache: Store, key: str) -> Path:
    return cache.folder() / f"{key}.entry"


def another_process(cache: Store) -> Store:
    """Returns the same cache in the state of a process that has not yet written to it."""
    return replace(cache)


def keep(cache: Store, number: int, size: int = 10) -> str:
    """Writes a value whose file has the time `number` seconds after 1970, and returns its key."""
    key = store.key(str(number))
    cache.write(key, b"v" * size)
    os.utime(path_of(cache, key), (number, number))
    return key


def keys(cache: Store) -> set[str]:
    return {path.stem for path in cache.folder().glob("*.entry")}


# ---- rules for every cache


def test_every_kind_has_one_cache():
    assert sorted(CACHES) == sorted(store.KINDS)


@pytest.fixture
def sources(tmp_path, monkeypatch) -> Path:
    """A copy of all source files; the fingerprints are made from this copy."""
    folder = tmp_path / "sources"
    for package in ("synthesis", "dialect_utils", "passes", "reshard", "tools"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))

    def folder_of(name: str) -> str:
        inner = name.split(".")[1:] or ["reshard"]
        return str(folder.joinpath(*inner))

    monkeypatch.setattr(store, "_folder_of_package", folder_of)
    yield folder
    _forget_fingerprints()


def _forget_fingerprints() -> None:
    store.fingerprint.cache_clear()
    store._digest_of_sources.cache_clear()


def fingerprint_now(cache: Store) -> str:
    """Returns the fingerprint that a new process computes."""
    _forget_fingerprints()
    return cache.fingerprint()


@pytest.mark.parametrize(
    "kind, path",
    [
        ("plans", "synthesis/search/best_first.py"),
        ("plans", "synthesis/network/presets/h100.toml"),
        ("results", "synthesis/network/presets/h100.toml"),
        ("results", "passes/results/report.py"),
        ("results", "reshard/live/redistribute.py"),
        ("results", "tools/opt/driver.py"),
        ("sites", "dialect_utils/emission/new_module.py"),
        ("sites", "passes/sites/oracle.py"),
        ("xla", "dialect_utils/xla/worker.py"),
        ("xla", "dialect_utils/xla/deeper/new_module.py"),
        ("xla", "synthesis/programs/traffic.py"),
    ],
)
def test_a_change_of_a_source_in_a_sub_folder_changes_the_fingerprint(kind, path, sources):
    cache = CACHES[kind]
    first = fingerprint_now(cache)
    assert first is not None and fingerprint_now(cache) == first
    source = sources / path
    source.parent.mkdir(exist_ok=True)
    before = source.read_bytes() if source.exists() else None
    source.write_bytes((before or b"") + b"# changed\n")
    changed = fingerprint_now(cache)
    assert changed not in (first, None)
    source.rename(source.with_name(f"renamed{source.suffix}"))
    assert fingerprint_now(cache) not in (changed, first, None)
    source.with_name(f"renamed{source.suffix}").unlink()
    if before is not None:
        source.write_bytes(before)
        assert fingerprint_now(cache) == first


def test_what_is_compiled_by_python_belongs_to_no_fingerprint(sources):
    first = {kind: fingerprint_now(cache) for kind, cache in CACHES.items()}
    (sources / "synthesis" / "search" / "__pycache__").mkdir()
    (sources / "synthesis" / "search" / "__pycache__" / "best_first.py").write_text("")
    assert {kind: fingerprint_now(cache) for kind, cache in CACHES.items()} == first


def test_without_sources_nothing_is_kept(root, monkeypatch):
    cache = Store("plans", PLANS.limits, ("reshard.no_such_package",), root=root)
    assert cache.fingerprint() is None and cache.folder() is None
    cache.write(KEY, b"value")
    assert cache.read(KEY, bytes) is None and not root.exists()


def test_a_kind_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="'plan' is no kind of cache; the kinds are plans, results, sites, xla"):
        Store("plan", PLANS.limits, ())


def test_lengths_of_parts_belong_to_the_key():
    assert len({store.key("ab", "c"), store.key("a", "bc"), store.key("abc"), store.key("abc", "")}) == 4
    assert store.key("abc") == store.key(b"abc")


# ---- entries


def test_what_is_written_is_read(kept):
    assert kept.read(KEY, bytes) is None
    kept.write(KEY, b"value")
    assert kept.read(KEY, bytes) == b"value" and kept.read(OTHER, bytes) is None
    assert another_process(kept).read(KEY, bytes.decode) == "value"


def test_another_version_does_not_read_it(kept):
    kept.write(KEY, b"value")
    assert replace(kept, facts=lambda: "another").read(KEY, bytes) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: b"",
        lambda entry: entry[:-1],
        lambda entry: entry + b".",
        lambda entry: entry[:70] + b"x" + entry[71:],
        lambda entry: entry[65:],
        lambda entry: store.sealed(OTHER, b"value"),
        lambda entry: entry * 1_000,
    ],
    ids=["empty", "cut", "longer", "changed", "no digest", "another key's", "huge"],
)
def test_a_damaged_entry_counts_as_missing_and_is_removed(kept, damage):
    kept.write(KEY, b"the value")
    path = path_of(kept, KEY)
    path.write_bytes(damage(path.read_bytes()))
    assert kept.read(KEY, bytes) is None and not path.exists()
    kept.write(KEY, b"the value")
    assert kept.read(KEY, bytes) == b"the value"


def test_an_entry_that_cannot_be_decoded_counts_as_missing_and_is_removed(kept):
    kept.write(KEY, b"[" * 900)
    assert kept.read(KEY, json.loads) is None and not path_of(kept, KEY).exists()


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to nothing", "link to itself"])
def test_something_else_in_the_place_of_an_entry_counts_as_missing(kept, kind):
    kept.write(KEY, b"value")
    path = path_of(kept, KEY)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "link to itself" else "nowhere")
    assert kept.read(KEY, bytes) is None
    another_process(kept).write(KEY, b"value")
    assert kept.read(KEY, bytes) == (None if kind == "folder" else b"value")


@pytest.mark.parametrize("kind", ["file", "pipe"])
@pytest.mark.parametrize("is_root", [True, False])
def test_something_else_in_the_place_of_a_folder_keeps_nothing(kept, root, kind, is_root):
    place = root if is_root else kept.folder()
    place.parent.mkdir(exist_ok=True)
    os.mkfifo(place) if kind == "pipe" else place.write_text("")
    kept.write(KEY, b"value")
    assert kept.read(KEY, bytes) is None and not place.is_dir()
    assert store.usage(root, "plans").entries == store.clear(root, "plans").entries == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_keeps_nothing(kept, root):
    root.mkdir(mode=0o500)
    kept.write(KEY, b"value")
    assert kept.read(KEY, bytes) is None


@pytest.mark.parametrize("value", ["off", "OFF", "0", "no", "false"])
def test_the_environment_switches_it_off(kept, root, monkeypatch, value):
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(root))
    monkeypatch.setenv("RESHARD_CACHE", value)
    cache = replace(kept, root=None)
    cache.write(KEY, b"value")
    assert cache.folder() is None and not root.exists()
    monkeypatch.delenv("RESHARD_CACHE")
    cache.write(KEY, b"value")
    assert cache.read(KEY, bytes) == b"value" and path_of(kept, KEY).exists()


# ---- limits


def test_an_entry_too_large_is_not_kept(kept, root):
    kept.write(KEY, b"v" * 1_001)
    assert not root.exists()
    kept.write(KEY, b"v" * 1_000)
    assert kept.read(KEY, len) == 1_000


def test_the_oldest_entries_go_by_number(kept):
    written = [keep(kept, number) for number in range(1, 8)]
    assert keys(kept) == set(written[-3:])


def test_the_oldest_entries_go_by_size(kept):
    cache = replace(kept, limits=Limits(entry_bytes=1_000, entries=100, total_bytes=5_000))
    written = [keep(cache, number, size=900) for number in range(1, 12)]
    left = [key for key in written if key in keys(cache)]
    assert left == written[-len(left) :] and 4 <= len(left) <= 5
    assert sum(path.stat().st_size for path in cache.folder().iterdir()) <= 5_000


def test_a_full_folder_is_not_listed_at_each_write(kept, monkeypatch):
    cache = replace(kept, limits=Limits(entry_bytes=1_000, entries=80, total_bytes=100_000))
    listings, files = [], store._files
    monkeypatch.setattr(store, "_files", lambda folder: listings.append(folder) or files(folder))
    for number in range(400):
        keep(cache, number)
    assert 70 <= len(keys(cache)) <= 80
    assert len(listings) < 45


def test_unfinished_files_of_processes_that_ended_go_too(kept):
    keep(kept, 1)
    unfinished = kept.folder() / f"{'0' * 16}.tmp"
    unfinished.write_text("")
    os.utime(unfinished, (0, 0))
    cache = another_process(kept)
    for number in range(2, 5):
        keep(cache, number)
    assert not unfinished.exists()


def test_the_oldest_versions_go_and_foreign_files_stay(kept, root):
    for number in range(5):
        version = replace(kept, facts=lambda: number)
        version.write(KEY, b"value")
        (root / f"notes-{number}").mkdir()
        if number == 1:
            (version.folder() / "notes.txt").write_text("mine")
        os.utime(version.folder(), (number, number))
    folders = store._version_folders(root, "plans")
    assert len(folders) == 3 and sum(any(each.glob("*.entry")) for each in folders) == 2
    assert [path.read_text() for path in root.glob("plans-*/notes.txt")] == ["mine"]
    assert len(list(root.glob("notes-*"))) == 5


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
def test_every_cache_has_limits_that_are_kept(cache, root, monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE_DIR", str(root))
    monkeypatch.delenv("RESHARD_CACHE", raising=False)
    limited = replace(cache, limits=replace(cache.limits, entries=4))
    written = [keep(limited, number) for number in range(1, 10)]
    assert keys(limited) == set(written[-4:])
    assert cache.limits.entries <= 20_000 and cache.limits.total_bytes <= 256 << 20


# ---- usage, clear


def test_usage_tells_what_lies_there(kept, root):
    assert store.usage(root, "plans") == store.Usage("plans", 0, 0, 0, None, None)
    keep(kept, 5)
    keep(replace(kept, facts=lambda: "another"), 7, size=20)
    assert store.usage(root, "plans") == store.Usage("plans", 2, 10 + 20 + 2 * 65, 2, 5, 7)
    assert store.usage(root, "sites").entries == 0


def test_clear_removes_one_kind_and_nothing_else(kept, root):
    sites = replace(kept, kind="sites")
    for cache in (kept, sites):
        keep(cache, 5)
    foreign = [
        root / "plans" / "x.entry",
        root / "plans-of-mine" / f"{KEY}.entry",
        root / "benchmarks" / f"{KEY}.json",
        kept.folder() / "notes.txt",
        kept.folder() / "deeper" / "x.json",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    os.mkfifo(kept.folder() / f"{OTHER}.entry")
    assert store.clear(root, "plans") == store.Usage("plans", 1, 75, 1, 5, 5)
    assert keys(kept) == {OTHER} and len(keys(sites)) == 1
    assert all(path.read_text() == "mine" for path in foreign)
    assert store.usage(root, "plans").versions == 0
    assert store.clear(root, "sites").versions == 1 and not sites.folder().exists()


def test_clear_removes_what_earlier_versions_have_written(root):
    for path in (
        f"plans-{'a' * 16}/ab/{KEY}.json",
        f"results-{'a' * 16}/{KEY}.result",
        f"sites-{'a' * 16}/{KEY}.json",
        f"xla-0.10.2-cpu/ab/{KEY}.json",
    ):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text("{}")
    assert [store.clear(root, kind).entries for kind in store.KINDS] == [1, 1, 1, 1]
    assert not list(root.iterdir())


def test_links_are_not_followed(kept, root, tmp_path):
    elsewhere = tmp_path / f"plans-{'b' * 16}"
    elsewhere.mkdir()
    (elsewhere / f"{KEY}.entry").write_text("mine")
    root.mkdir()
    (root / elsewhere.name).symlink_to(elsewhere)
    keep(kept, 5)
    (kept.folder() / "ab").symlink_to(elsewhere)
    (kept.folder() / f"{OTHER}.entry").symlink_to(elsewhere / f"{KEY}.entry")
    assert store.usage(root, "plans").entries == 1
    assert store.clear(root, "plans").entries == 1
    assert (elsewhere / f"{KEY}.entry").read_text() == "mine"


def test_a_writer_goes_on_after_clear(kept, root):
    keep(kept, 5)
    store.clear(root, "plans")
    key = keep(kept, 6)
    assert kept.read(key, bytes)


# ---- processes

_WRITE_AND_READ = """
import sys
from pathlib import Path
from reshard.synthesis.common import store
seed = int(sys.argv[2])
cache = store.Store("plans", store.Limits(10_000, 20, 100_000), (), root=Path(sys.argv[1]))
hits = 0
for number in range(600):
    key = store.key(str(number // 2 * (7 + seed) % 50))  # each twice: what was just written is there
    value = key.encode() * 100
    found = cache.read(key, bytes)
    assert found in (None, value), found
    hits += found is not None
    cache.write(key, value)
    if number % 200 == 199:
        store.clear(Path(sys.argv[1]), "plans")
print(hits)
"""


@pytest.mark.slow
def test_processes_at_once_read_whole_values_or_none_and_keep_the_limits(root):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    commands = [[sys.executable, "-c", _WRITE_AND_READ, str(root), str(seed)] for seed in range(3)]
    processes = [subprocess.Popen(each, env=environment, stdout=subprocess.PIPE) for each in commands]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0] and all(map(int, outputs))
    cache = Store("plans", Limits(10_000, 20, 100_000), (), root=root)
    assert not list(root.rglob("*.tmp"))
    for number in range(30):
        keep(cache, 2_000_000_000 + number)
    assert len(keys(cache)) <= 20


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
def test_the_limits_in_the_docs_are_those_of_the_caches(cache):
    limits = cache.limits
    entry, total = (f"{size >> 20} MiB" for size in (limits.entry_bytes, limits.total_bytes))
    row = f"| `{cache.kind}` | {entry} | {limits.entries:,} | {total} | {limits.versions} |"
    assert row in (ROOT / "docs" / "reshard-cache.md").read_text().splitlines()
