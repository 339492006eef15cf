"""What holds for the tests themselves."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
IMPORT = re.compile(
    r"^ *(?:from [\w.]*\btest_\w+ import|from [\w.]+ import .*\btest_\w|import .*\btest_)", re.M
)


def test_no_test_module_imports_another():
    """A module that skips itself would take those with it that import it."""
    files = sorted(TESTS.rglob("*.py"))
    assert files
    found = {str(f.relative_to(TESTS)): IMPORT.findall(f.read_text()) for f in files}
    assert {name: imports for name, imports in found.items() if imports} == {}


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("from tests.mpi.test_ps import A", True),
        ("def f():\n    from tests.mpi import test_ps", True),
        ("import tests.mpi.test_ps as t", True),
        ("from tests.mpi.golden_jobs import test", False),
        ("from hpcdist.latest_news import a", False),
    ],
)
def test_the_check_sees_imports_of_test_modules(source, imports):
    assert bool(IMPORT.search(source)) == imports


# Names that begin with an underscore and are no secrets of hpcdist's: scripts of Fluid use them.
FLUIDS = re.findall(
    r"\w+",
    """
    _accumulators _all_reduce _alloc_float _alloc_int _append_grad_suffix_ _appending_grad_times
    _as_lodtensor
    _barrier_worker _block_attr_id _blocks_attr_ids _check_input_array _clone_variable _create_block
    _decay_step_counter _distributed_lookup_table _dtype _endpoints _fetch_var _get_accumulator
    _get_dims _get_float_element _get_stop_gradients_ _global_learning_rate
    _hierarchical_allreduce_inter_nranks _insert_op _is_chief _is_distributed _is_initialized
    _loader _lr_schedule_guard _moment1_acc_str _mutable_data _nccl_comm_num _optimized_guard
    _origin_program _parameters_on_pservers _prepend_op _program _prune _prune_with_input
    _ps_endpoint
    _remove_op _remove_var _rename_input _rename_output _rename_var _reset _role_maker _rollback
    _set_attr _set_checkpoints _set_dims _set_eager_deletion_mode _set_error_clip _set_float_element
    _set_server_config _stat_neg _stat_pos _trainers_endpoints _type _use_hierarchical_allreduce
    _var_recursive
    """,
)
FOREIGN = re.findall(
    r"\w+",
    """
    _C _c10d_functional _coalescing_manager _compile _core _create_internal _cuda_types
    _distributed_c10d _dynamo _ensure_backend_registered _exit _func _functional_collectives
    _get_backend _get_default_store _internal _make_nccl_premul_sum _memo _mode _plugins
    _read_payload _register_atexit _register_builtin_comm_hook _replace _set_default_timeout
    _C_ops _set_pg_timeout _set_sequence_number_for_group _sleep _subclasses _timeout
    """,
)
ACCESS = re.compile(
    r"""(?<!\bself)(?<!\bcls)\.(_[a-zA-Z]\w*)
    | (?:attr|attrgetter|patch|object)\((?:[^"]*,\s*)?"(?:[\w.]+\.)?(_[a-zA-Z]\w*)"
    | (?:\b__dict__|\bvars\([^)]*\))\["(_[a-zA-Z]\w*)"
    | \bimport\ \(?(?:\s*\w+,)*\s*(_[a-zA-Z]\w*)""",
    re.X,
)
OWN = re.compile(r"\bself\.(_\w+)\b|\b(?:def|class) (_\w+)|^ +(_\w+) = ", re.M)
SAID_WHY = "# private: "


def private_accesses(text: str, own: set[str]) -> list[str]:
    """Return what a test reaches for that is neither public, nor Fluid's, nor the test's own."""
    lines = "\n".join(line for line in text.splitlines() if SAID_WHY not in line)
    names = {name for match in ACCESS.findall(lines) for name in match if name}
    return sorted(names - own - {*FLUIDS, *FOREIGN})


def test_tests_see_of_hpcdist_what_users_and_neighbours_see():
    """What cannot be tested by it says why in a comment that begins with ``private:``."""
    texts = {path: path.read_text() for path in sorted(TESTS.rglob("*.py"))}
    of_stand_ins = set()
    for path, text in texts.items():
        if path.parent.name == "support":
            of_stand_ins |= {name for match in OWN.findall(text) for name in match}
    assert "_view" in of_stand_ins
    found = {}
    for path, text in texts.items():
        own = {name for match in OWN.findall(text) for name in match}
        if path.parent.name in ("device", "support"):
            own |= of_stand_ins
        if path.name != "test_test_modules.py" and (names := private_accesses(text, own)):
            found[str(path.relative_to(TESTS))] = names
    assert found == {}
    reasons = [line for t in texts.values() for line in t.splitlines() if SAID_WHY in line]
    assert len(reasons) < 20


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("client._sent = 3", ["_sent"]),
        ("f()[0]._sent[1]", ["_sent"]),
        ("from hpcdist.ops import fc, _hidden", ["_hidden"]),
        ("from hpcdist.ops import (\n    fc,\n    _hidden,\n)", ["_hidden"]),
        ("from hpcdist.ops._hidden import fc", ["_hidden"]),
        ('monkeypatch.setattr(lock, "_heart", None)', ["_heart"]),
        ('monkeypatch.setattr("hpcdist.a.lock._heart", None)', ["_heart"]),
        ('monkeypatch.setattr(\n    made(lock), "_heart", None\n)', ["_heart"]),
        ('mock.patch.object(lock, "_heart")', ["_heart"]),
        ('mock.patch("hpcdist.a.lock._heart")', ["_heart"]),
        ('vars(lock)["_heart"] = lock.__dict__["_pulse"]', ["_heart", "_pulse"]),
        ('operator.attrgetter("_heart")(lock)', ["_heart"]),
        ("self._x = 1; cls._y; program._prune([]); os._exit(3); a.b; __all__", []),
        ("x._sent  # private: nobody else has it", []),
    ],
)
def test_the_check_sees_private_accesses(source, names):
    assert private_accesses(source, set()) == names


def imported(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield file, module and name of what a folder's scripts import of hpcdist."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            module = getattr(node, "module", None) or ""
            if isinstance(node, ast.ImportFrom) and re.match(r"hpcdist(?!\.torch)\b", module):
                yield from ((file.name, module, alias.name) for alias in node.names)


def is_there(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except (ImportError, LookupError):
        return False
    return True


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_what_scripts_beside_the_tests_import_is_there(folder):
    found = {*imported(TESTS.parent / folder)}
    assert found
    assert [row for row in sorted(found) if not is_there(*row[1:])] == []


def test_the_check_sees_a_name_that_has_moved():
    assert is_there("hpcdist.graph", "shape_rules")
    assert is_there("hpcdist.graph.shape_rules", "infer_outputs")
    assert not is_there("hpcdist.graph.shape_rules", "nobody")
