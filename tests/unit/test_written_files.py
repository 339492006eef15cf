"""Where files are created: new ones under names that nobody can guess, never through a link."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Who creates files, and why nothing planted can harm it.
CREATORS = {
    "hpcdist/base/replaced.py": "O_EXCL, a random name",
    "hpcdist/checkpoint/lock.py": "O_EXCL",
    "hpcdist/checkpoint/checkpoint.py": "an empty mark in the checkpoint's own directory",
    "hpcdist/checkpoint/files.py": "opens only what exists, for reading",
    "hpcdist/checkpoint/compressed.py": "HDF5 in memory, without a file",
    "hpcdist/checkpoint/one_file.py": "HDF5 over MPI, in a file of `create_beside`",
    "hpcdist/checkpoint/published_rows.py": "an empty mark in the publication's own directory",
    "hpcdist/checkpoint/serving.py": "mode x",
    "hpcdist/checkpoint/write.py": "HDF5 in a file of `in_place_of`",
    "hpcdist/data/columnar/certificate.py": "mode x",
    "hpcdist/base/temporary.py": "without a name, or in a TemporaryDirectory",
    "hpcdist/fluid/compat/debugger.py": "the file that the script names",
    "hpcdist/fluid/fleet/file_systems.py": "the file that the script names",
    "hpcdist/fluid/io/model.py": "in a temporary folder",
    "hpcdist/launch/gpus.py": "a device, opened only",
    "hpcdist/launch/held_outputs.py": "/dev/null, a rank's own pipe",
    "hpcdist/launch/host_board.py": "a rank's file without a name, opened only",
    "hpcdist/launch/job_report.py": "the file that the command line names",
    "hpcdist/launch/logs.py": "files in --log-dir, /dev/null",
    "hpcdist/launch/quiet_end.py": "/dev/null",
    "hpcdist/launch/slurm.py": "the file that the command line names",
    "hpcdist/launch/stuck_launcher.py": "the launcher's own standard error",
    "hpcdist/launch/notebook.py": "in a temporary folder",
    "hpcdist/ps/published/files.py": "a descriptor of `in_place_of`",
    "hpcdist/base/trace/chrome.py": "a descriptor of `in_place_of`",
    "hpcdist/base/trace/files.py": "a descriptor of `in_place_of`",
    "hpcdist/base/trace/metric_files.py": "files in the directory that the script names",
    "hpcdist/base/trace/tensorboard.py": "files in the directory that the script names",
    "examples/avazu.py": "NamedTemporaryFile",
    "examples/clicks_from_parquet.py": "NamedTemporaryFile",
    "examples/criteo.py": "NamedTemporaryFile",
    "examples/daily_clicks.py": "the directory that the command line names",
    "examples/deepfm.py": "NamedTemporaryFile",
    "examples/fleet_dataset.py": "in a TemporaryDirectory",
}
OPENING = ("open", "File", "fdopen")
WRITING = ("write_text", "write_bytes", "write_table", "copyfile")
TEMPORARY = ("NamedTemporaryFile", "TemporaryDirectory", "mkstemp", "mkdtemp", "mktemp")


def creations(source: str) -> list[int]:
    """Return the lines of calls that create files, or may."""
    tree = ast.parse(source)
    return sorted({n.lineno for n in ast.walk(tree) if isinstance(n, ast.Call) and _creates(n)})


def _creates(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    name = called.rpartition(".")[2]
    given = [*call.args, *(k.value for k in call.keywords)]
    if called == "os.open":
        return "O_RDONLY" not in ast.unparse(call.args[1])
    if name in OPENING:
        modes = [a.value for a in given if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)
    if name == "touch":
        return "/" in called or "path" in called.lower()
    if name in ("save", "savez"):
        return called.startswith(("np.", "numpy."))
    return name in TEMPORARY or ("." in called and name in WRITING)


def test_files_are_created_where_they_are_declared():
    found = set()
    for folder in ("hpcdist", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if creations(path.read_text()):
                found.add(str(path.relative_to(ROOT)))
    assert found - set(CREATORS) == set(), "create files through hpcdist.base.replaced, or say why"
    assert set(CREATORS) - found == set(), "no longer creates files: leave it out"


def test_what_a_kill_would_leave_behind_is_made_in_one_place():
    makers = set()
    for path in sorted((ROOT / "hpcdist").rglob("*.py")):
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        if any(ast.unparse(call.func).rpartition(".")[2] in TEMPORARY for call in calls):
            makers.add(str(path.relative_to(ROOT)))
    assert makers == {"hpcdist/base/temporary.py"}, (
        "use hpcdist.base.temporary: its folders are removed after a kill"
    )


@pytest.mark.parametrize(
    ("source", "creates"),
    [
        ("open(name, 'w')", True),
        ("path.open('ab')", True),
        ("open(name, mode='x')", True),
        ("os.open(p, os.O_CREAT | os.O_EXCL)", True),
        ("os.open(p, flags)", True),
        ("(folder / name).touch()", True),
        ("program.touch()", False),
        ("h5py.File(name, 'w')", True),
        ("path.write_text(text)", True),
        ("np.save(name, array)", True),
        ("tempfile.mktemp()", True),
        ("open(name)", False),
        ("path.open('rb')", False),
        ("os.open(p, os.O_RDONLY)", False),
        ("Image.open('wax')", True),  # rather one too many
        ("saver.save(step)", False),
    ],
)
def test_what_creates_files_is_seen(source, creates):
    assert bool(creations(source)) == creates


def test_nothing_names_temporary_files_by_hand():
    """A process id in a name can be guessed, and mktemp leaves time to plant a link."""
    for folder in ("hpcdist", "examples", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            assert "mktemp(" not in source, path
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Call) and "with_name" in ast.unparse(node.func):
                    assert "getpid" not in ast.unparse(node), f"{path}:{node.lineno}"
