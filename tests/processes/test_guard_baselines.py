"""Baselines of the guard of speed: taken from the history, once; told when they are not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.jobs import ROOT


@pytest.fixture
def guard(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import guard

    yield guard
    for name in ("guard", "vs_fluid", "rounds", "cases"):
        sys.modules.pop(name, None)


@pytest.fixture
def history(tmp_path):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    for folder in ("hpcdist", "benchmarks"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "speed.py").write_text("then")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "hpcdist" / "speed.py").write_text("now")
    return commit


def test_a_baseline_is_the_tree_as_it_was_made_once(guard, history, tmp_path):
    folder = guard.checkout(history, tmp_path)
    assert (folder / "hpcdist" / "speed.py").read_text() == "then"
    assert (folder / "benchmarks" / "speed.py").exists()
    (folder / "kept").touch()
    assert guard.checkout(history, tmp_path) == folder
    assert (folder / "kept").exists()
    assert [path.name for path in folder.parent.iterdir()] == [history]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_work_runs_the_package_of_its_tree(guard, tmp_path, ranks):
    files = {
        # A script alone imports the package; `python -m hpcdist` starts it.
        "benchmarks/train.py": "import hpcdist, json; print(json.dumps(hpcdist.found))",
        "hpcdist/__init__.py": "found = {'steps_per_s': 7}",
        "hpcdist/__main__.py": "import hpcdist, json; print(json.dumps(hpcdist.found))",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    work = guard.Work("of another tree", "", "train.py", ranks, servers=ranks - 1)
    assert guard.run(work, tmp_path) == {"steps_per_s": 7}


def test_a_history_that_lacks_the_baseline_says_so(guard, history, tmp_path):
    with pytest.raises(guard.Missing, match=r"no commit 1234567 here: clone the whole history"):
        guard.checkout("1234567", tmp_path)
    with pytest.raises(guard.Missing):
        guard.checkout("1234567", tmp_path / "hpcdist" / "nowhere")


def test_what_cannot_be_raced_is_skipped_with_its_reason(guard, monkeypatch, capsys):
    def missing(commit):
        raise guard.Missing("no commit here")

    monkeypatch.setattr(guard, "checkout", missing)
    monkeypatch.setattr(sys, "argv", ["guard.py", "--short"])
    with pytest.raises(SystemExit) as ended:
        guard.main()
    assert ended.value.code == 0
    assert "linreg alone: skipped: no commit here" in capsys.readouterr().err
