"""Compiled kernels on disk: found again by other processes, and not once their sources change."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest

import hpcdist
from hpcdist.base.jit import Compiling, jit
from hpcdist.errors import SettingError

STEP = Path(__file__).parents[1] / "scripts/steps_by_sgd.py"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The sources of optimizer kernels, copied."""
    source, copy = Path(hpcdist.__file__).parent, tmp_path / "hpcdist"
    for folder in ("", "base", "ops", "ops/optimize"):
        (copy / folder).mkdir()
        (copy / folder / "__init__.py").touch()
    rules = "base/optimizer_kind", "base/optimizers", "base/update_rules"
    told = "base/fluid_settings", "base/nearest", "base/setting", "base/settings", "base/warned"
    kept = "base/errors", "base/jit", "base/replaced", "ops/optimize/update_kernels"
    for name in (*kept, *rules, *told):
        shutil.copy(source / f"{name}.py", copy / f"{name}.py")
    return copy


def step_in_a_process(package: Path) -> tuple[float, int]:
    """Return a parameter after one step of sgd, and how many kernels came from the disk."""
    done = subprocess.run(
        [sys.executable, STEP],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    value, hits = done.stdout.split()
    return float(value), int(hits)


def test_kernels_are_found_again_until_their_rule_changes(package: Path) -> None:
    assert step_in_a_process(package) == (0.5, 0)
    assert step_in_a_process(package) == (0.5, 1)
    old = {path.name for path in package.rglob("update_kernels.update_*sgd_rule*.nbc")}
    rules = package / "base/optimizers.py"
    rules.write_text(rules.read_text().replace("p - lr * g\n", "p - 100 * lr * g\n"))
    assert step_in_a_process(package) == (-49.0, 0)
    new = {path.name for path in package.rglob("update_kernels.update_*sgd_rule*.nbc")}
    assert len(new) == len(old) == 1
    assert new != old


def test_two_kernels_cannot_have_one_name() -> None:
    jit(lambda x: x)
    with pytest.raises(TypeError, match=r"lambda.*another name"):
        jit(lambda x: x + 1)


def test_numba_that_compiles_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    with pytest.raises(SettingError, match="NUMBA_DISABLE_JIT is set: .* unset it"):
        jit(lambda x: x)


def test_a_process_that_compiles_for_a_while_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hpcdist")
    clock = iter([0.0, 3.0, 3.0, 4.0, 4.0, 5.0])
    compiling = Compiling(lambda: next(clock))
    compiling.begin(Path("/kept"))
    assert not caplog.messages
    compiling.end()
    for _ in range(2):
        compiling.begin(Path("/kept"))
        compiling.end()
    assert caplog.messages == ["compiles kernels at their first use; next time they are in /kept"]
