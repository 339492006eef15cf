"""Which GPU is whose; nobody needs one for this."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

import hpcdist as fluid
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.loopback import world
from hpcdist.launch import gpus
from tests.support.jobs import ROOT
from tests.support.threads import run_threads


@pytest.mark.parametrize(
    ("named", "count"),
    [("0,1,2,3", 4), ("3", 1), ("", 0), ("-1", 0), ("0,-1,2", 1), ("GPU-8f, GPU-2b", 2)],
)
def test_visible_devices_are_counted_without_a_driver(named, count):
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": named}) == count


def test_without_the_variable_those_count_that_can_be_used(tmp_path):
    assert gpus.visible({}, lambda: 3) == 3
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    (tmp_path / "nvidia2").mkdir()  # cannot be opened, by root neither
    assert gpus.count_usable("libno-nvml.so", tmp_path) == 2


NVML = """
static int ready;
int nvmlInit_v2(void) { ready = 1; return 0; }
int nvmlShutdown(void) { ready = 0; return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 4; return ready ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { return i == 1 || i == 2 ? 0 : 4; }
"""


def test_nvml_gives_no_handles_of_what_a_cgroup_keeps_away(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler, to make a library like NVML")
    (tmp_path / "nvml.c").write_text(NVML)
    library = str(tmp_path / "libnvml.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    assert gpus.count_usable(library) == 2  # of 4, in Slurm's cgroup


def assigned(cluster, hosts, envs):
    """Return what every rank finds; ``envs`` by rank."""
    found = {}

    def body(transport):
        found[transport.rank] = gpus.variables(transport, cluster, envs[transport.rank])

    run_threads([lambda t=t: body(t) for t in world(len(hosts), hosts)])
    return [found[rank] for rank in range(len(hosts))]


def test_trainers_of_a_host_take_its_gpus_in_turn():
    # Ranks 0, 1, 4 on one host, 2, 3 on another; rank 1 is a server.
    cluster = Cluster(trainers=(0, 2, 3, 4), servers=(1,))
    envs = [{"CUDA_VISIBLE_DEVICES": "0,1"}] * 5
    found = assigned(cluster, [0, 0, 1, 1, 0], envs)
    assert [env.get("FLAGS_selected_gpus") for env in found] == ["0", None, "0", "1", "1"]


def test_more_trainers_than_gpus_share_and_a_choice_that_is_made_stays():
    two = {"CUDA_VISIBLE_DEVICES": "0,1"}
    envs = [two, two | {"FLAGS_selected_gpus": "0"}, two, two]
    found = assigned(Cluster((0, 1, 2, 3)), [0, 0, 0, 0], envs)
    assert [env["FLAGS_selected_gpus"] for env in found] == ["0", "0", "0", "1"]


def test_nothing_is_said_without_gpus():
    assert assigned(Cluster((0, 1)), [0, 0], [{"CUDA_VISIBLE_DEVICES": ""}] * 2) == [{}, {}]


def test_what_rank_0_has_for_nccl_all_have():
    envs = [{"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}, {"NCCL_DEBUG": "WARN", "NCCL_X": "1"}]
    envs = [env | {"CUDA_VISIBLE_DEVICES": ""} for env in envs]
    first, second = assigned(Cluster((0, 1)), [0, 1], envs)
    assert list(first.items()) == [("NCCL_ALGO", "Ring"), ("NCCL_DEBUG", "INFO")]
    assert second == {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "WARN"}


def test_places_follow_the_selected_gpus(monkeypatch):
    monkeypatch.setenv("FLAGS_selected_gpus", "2,3")
    assert [place.device_id for place in fluid.cuda_places()] == [2, 3]
    assert [place.device_id for place in fluid.cuda_places([1])] == [1]
    monkeypatch.setenv("FLAGS_selected_gpus", "a")
    with pytest.raises(fluid.HpcdistError, match="FLAGS_selected_gpus: expected numbers.*'a'"):
        fluid.cuda_places()


def test_places_by_name(monkeypatch):
    assert fluid.place("cpu") == fluid.CPUPlace()
    monkeypatch.setenv("FLAGS_selected_gpus", "2,3")
    assert fluid.place("gpu") == fluid.CUDAPlace(2)
    monkeypatch.delenv("FLAGS_selected_gpus")
    assert fluid.place("gpu") == fluid.CUDAPlace(0)
    with pytest.raises(ValueError, match="expected cpu or gpu, got 'tpu'"):
        fluid.place("tpu")


SCRIPTS = [path for path in (ROOT / "examples").glob("*.py") if ".minimize(" in path.read_text()]
# Paddle 2 has no word for the GPU of this rank.
SCRIPTS = [path for path in SCRIPTS if "import paddle" not in path.read_text()]
SCRIPTS += [ROOT / "benchmarks" / f"{name}.py" for name in ("gpu", "train", "train_async")]
SCRIPTS += [ROOT / "benchmarks" / f"{name}.py" for name in ("train_sums", "ctr_train")]


@pytest.mark.parametrize("path", sorted(SCRIPTS), ids=lambda path: path.name)
def test_a_script_that_trains_takes_a_place(path):
    script = path.read_text()
    assert '"--place"' in script and "Executor(fluid.CPUPlace())" not in script


def test_cupy_that_finds_no_libraries_of_cuda_sees_no_gpu(monkeypatch, tmp_path):
    (tmp_path / "cupy.py").write_text("raise ImportError('libcudart.so.12: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert fluid.core.get_cuda_device_count() == 0
