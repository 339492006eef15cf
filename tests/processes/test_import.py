"""What importing the package changes in a process that wants the library only."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import hpcdist
from hpcdist.base.hidden import STANDARD
from hpcdist.errors import LaunchError

SCRIPTS = Path(__file__).parents[1] / "scripts"


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def test_nothing_of_the_process_changes() -> None:
    before, after = json.loads(run(str(SCRIPTS / "imports_only.py")))
    assert after == before


@pytest.mark.parametrize("words", [("-m", "hpcdist", "train.py"), ("train.py",)])
def test_a_file_that_hides_a_module_of_pythons_is_named(words: tuple[str, ...], tmp_path) -> None:
    (tmp_path / "random.py").write_text("")
    (tmp_path / "train.py").write_text("import hpcdist")
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = f"random.py in {tmp_path} hides Python's random: give the file another name\n"
    assert done.returncode == 1
    assert done.stderr == f"hpcdist: {said}" if "-m" in words else done.stderr.endswith(said)


def test_a_file_that_hides_what_is_imported_first_of_all_is_named(tmp_path) -> None:
    (tmp_path / "enum.py").write_text("")  # signal imports it, and signals are held first
    command = [sys.executable, "-m", "hpcdist", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.startswith(f"hpcdist: enum.py in {tmp_path} hides Python's enum"), done


# What Python itself has imported before this package, in one version or another.
EARLY = {
    *("collections", "contextlib", "functools", "importlib", "keyword", "ntpath", "operator"),
    *("reprlib", "runpy", "warnings"),
}


def test_all_of_pythons_that_a_job_imports_are_looked_for() -> None:
    code = (
        "import sys; begun = set(sys.modules); import hpcdist.launch.main as _, hpcdist; "
        "hpcdist.layers; print(*(m.partition('.')[0] for m in set(sys.modules) - begun))"
    )
    loaded = {name for name in run("-c", code).split() if not name.startswith("_")}
    own = (loaded & sys.stdlib_module_names) - set(sys.builtin_module_names) - EARLY
    assert {"json", "enum"} <= own
    assert own <= set(STANDARD)


@pytest.mark.parametrize("options", [(), ("-m", "hpcdist"), ("-m", "hpcdist", "--as-paddle")])
def test_data_is_a_function_and_a_module(options: tuple[str, ...]) -> None:
    names = ("paddle", "paddle.fluid") if "--as-paddle" in options else ("", "hpcdist")
    assert run(*options, str(SCRIPTS / "reads_by_name.py"), *names) == "right\n"


def test_a_torch_that_is_too_old_is_no_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickle, and so torch.compile, asks every module for names: "torch" is one of them."""
    old = ModuleType("torch")
    old.__version__ = "2.11.0+cu130"
    monkeypatch.setitem(sys.modules, "torch", old)
    monkeypatch.delitem(sys.modules, "hpcdist.torch", raising=False)
    monkeypatch.delattr(hpcdist, "torch", raising=False)
    assert getattr(hpcdist, "torch", None) is None
    with pytest.raises(
        AttributeError, match=r"hpcdist\.torch needs torch 2\.13 or newer, found 2\.11"
    ):
        _ = hpcdist.torch
    with pytest.raises(LaunchError, match="found 2"):
        importlib.import_module("hpcdist.torch")


SET_FIRST = """
import hpcdist as fluid

def place(number):
    return fluid.CPUPlace()

fluid.CUDAPlace = place
fluid.Executor(fluid.CUDAPlace(0))
assert fluid.CUDAPlace is place
print(fluid.layers.__name__, fluid.io.__name__)
"""


def test_a_name_that_a_script_sets_first_stays() -> None:
    assert run("-c", SET_FIRST).split() == ["hpcdist.fluid.layers", "hpcdist.fluid.io"]
