"""Recipes in packaging/ name what setup.py needs; the script of the ReFrame test trains."""

import ast
import fnmatch
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import MPIRUN, clean_environment, needs_mpirun

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
NEEDED = {
    match[1]: match[2]
    for requirement in importlib.metadata.requires("hpcdist") or []
    if "extra" not in requirement and (match := re.match(r"([\w-]+)>=([\d.]+)", requirement))
}


def test_wheels_hold_every_file_of_the_package():
    """An editable install, as the tests have it, reads the checkout: it misses nothing."""
    (call,) = (
        n for n in ast.walk(ast.parse((ROOT / "setup.py").read_text("utf-8"))) if _is_setup(n)
    )
    (data,) = (k.value for k in call.keywords if k.arg == "package_data")
    ((package, patterns),) = ast.literal_eval(data).items()
    assert package == ""  # of all packages
    files = [f for f in (ROOT / "hpcdist").rglob("*.*") if f.suffix != ".py"]
    files = [f for f in files if f.parent.name != "__pycache__"]
    assert files
    for file in files:
        assert any(fnmatch.fnmatch(file.name, pattern) for pattern in patterns), file
        assert (file.parent / "__init__.py").exists(), f"{file}: its folder is no package"


def _is_setup(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setup"


def test_spack_names_all_dependencies():
    text = (PACKAGING / "spack/package.py").read_text("utf-8")
    ast.parse(text)
    always = r'depends_on\("py-([\w-]+)@([\d.]+):[^"]*", type=\("build", "run"\)\)'
    named = dict(re.findall(always, text))
    assert named == NEEDED


def test_conda_names_all_dependencies():
    text = (PACKAGING / "conda/recipe.yaml").read_text("utf-8")
    run = text.partition("\n  run:\n")[2].partition("\n\n")[0]
    named = dict(re.findall(r"- ([\w-]+) >=([\d.]+)", run))
    named["xxhash"] = named.pop("python-xxhash")
    del named["python"]
    assert named == NEEDED


def test_easybuild_names_all_dependencies():
    (file,) = (PACKAGING / "easybuild").glob("*.eb")
    text = file.read_text("utf-8")
    ast.parse(text)
    for name in NEEDED:
        assert re.search(rf"\b{name}\b", text), name


@pytest.mark.parametrize("file", ["spack/package.py", "conda/recipe.yaml"])
def test_what_builds_it(file):
    build = (ROOT / "pyproject.toml").read_text("utf-8")
    for name, least in re.findall(r'"(setuptools(?:-scm)?)>=(\d+)"', build):
        assert re.search(rf"{name}(@{least}:| >={least}\n)", (PACKAGING / file).read_text("utf-8"))


@needs_mpirun
@pytest.mark.parametrize("servers", [0, 2])
def test_the_loss_of_the_reframe_test(servers, tmp_path):
    check = (PACKAGING / "reframe/hpcdist_check.py").read_text("utf-8")
    wanted = float(re.search(r"^LOSS = (\S+)", check, re.M)[1])
    words = [MPIRUN, "-n", "4"] if servers else []
    words += [sys.executable, "-m", "hpcdist", "--quiet", "--pservers", str(servers)]
    words.append(str(PACKAGING / "reframe/src/train.py"))
    environment = clean_environment()
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    out = ran.stdout
    found = float(re.search(r"^loss (\S+)", out, re.M)[1])
    assert found == pytest.approx(wanted, rel=1e-3)
    assert re.search(r"^speed \d", out, re.M)
