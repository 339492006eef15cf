"""Examples, shortened: on several ranks they print what a single process prints."""

from __future__ import annotations

import gzip
import importlib.util
import re

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.dataset import adult, files, movielens, text
from hpcdist.fluid.dataset.files import DATA_HOME
from tests.support.jobs import ROOT, Job, needs_mpirun

pytestmark = needs_mpirun

NUMBER = re.compile(r"-?\d+\.\d+")
EXCERPTS = ROOT / "tests" / "excerpts"
needs_ratings = pytest.mark.skipif(
    not movielens.available(), reason=f"no {movielens.FILE}: {movielens.SOURCE}; set {DATA_HOME}"
)
needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pip install hpcdist[data]"
)
# Script, options, ranks, servers, and the least that the last number must be.
RUNS = [
    ("ctr.py", "--model deepfm --table distributed --steps 40", 3, 1, 0.60),
    pytest.param(
        "clicks_from_parquet.py", "--samples 4000 --epochs 1", 3, 1, 0.60, marks=needs_pyarrow
    ),
    pytest.param("criteo.py", "--samples 4000 --epochs 1", 4, 2, 0.60, marks=needs_pyarrow),
    pytest.param("avazu.py", "--samples 4000 --epochs 1", 2, 0, 0.60, marks=needs_pyarrow),
    ("ctr.py", "--data adult --steps 40", 2, 0, 0.85),
    ("gan.py", "--epochs 1", 4, 2, 0.50),
    ("label_roles.py", "--epochs 1 --sentences 960 --width 8", 4, 2, 0.30),
    ("sentiment.py", "--epochs 1 --sentences 1600 --batch-size 16 --width 8", 4, 2, 0.60),
    ("machine_translation.py", "--epochs 1 --sentences 2400 --width 16", 4, 2, 0.25),
    ("word2vec.py", "--sparse --steps 40", 3, 1, 0.20),
    pytest.param(
        "recommender.py",
        "--table distributed --epochs 1 --steps 40",
        4,
        2,
        0.70,
        marks=needs_ratings,
    ),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a directory of data sets: HPCDIST_DATA_HOME's files, excerpts where it has none."""
    home = tmp_path_factory.mktemp("data")
    for packed in EXCERPTS.glob("*.gz"):
        (home / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    for name in (*adult.FILES.values(), text.FILE.name, movielens.FILE):
        if found := files.find(name):
            (home / name).unlink(missing_ok=True)
            (home / name).symlink_to(found)
    return home


@pytest.mark.parametrize(("script", "options", "ranks", "servers", "least"), RUNS)
def test_ranks_find_what_one_process_finds(tmp_path, data, script, options, ranks, servers, least):
    source = (ROOT / "examples" / script).read_text()
    found = []
    for size, pservers in ((1, 0), (ranks, servers)):
        directory = tmp_path / str(size)
        directory.mkdir()
        quiet = ("--quiet", *(("--pservers", str(pservers)) if pservers else ()))
        ended = Job(
            directory,
            source,
            *quiet,
            ranks=size,
            args=options.split(),
            env={DATA_HOME: str(data)},
            mpirun=size > 1,
        ).end(within_s=300)
        assert ended.code == 0, ended.err
        (line,) = [line for line in ended.out.splitlines() if line.startswith("epoch")]
        found.append([float(number) for number in NUMBER.findall(line)])
    assert len(found[0]) == 3
    np.testing.assert_allclose(found[1], found[0], atol=2e-4)
    assert found[0][-1] > least


def test_a_job_reports_the_days_that_one_process_reports(tmp_path):
    script, found = (ROOT / "examples/daily_clicks.py").read_text(), []
    for ranks, options in ((1, ()), (2, ("--pservers", "1"))):
        directory = tmp_path / str(ranks)
        directory.mkdir()
        args = ("--days", "1", "--rows", "600")
        ended = Job(directory, script, "--quiet", *options, ranks=ranks, args=args).end()
        assert ended.code == 0, ended.err
        found.append([float(area) for area in NUMBER.findall(ended.out)])
    assert len(found[0]) == 2
    np.testing.assert_allclose(found[1], found[0], atol=2e-3)


def test_the_first_page_prints_the_same_loss_however_it_is_started(tmp_path):
    source = re.search(r"```python\n(# train.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert source is not None
    paddle = source[1].replace("import hpcdist as fluid", "import paddle.fluid as fluid")
    losses = []
    for ranks, options, script in (
        (1, ["--as-paddle"], paddle),
        (4, ["--pservers", "2"], source[1]),
        (4, [], source[1]),
    ):
        ended = Job(tmp_path, script, *options, ranks=ranks, mpirun=ranks > 1).end()
        assert ended.code == 0, ended.err
        assert re.fullmatch(rf"loss {NUMBER.pattern}\n", ended.out)
        losses.append(float(ended.out.split()[1]))
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


def test_servers_report_their_tables(tmp_path):
    """What the documentation of tables shows: five batches of 64 ids, none of them twice."""
    source = re.search(
        r"```python\n(# ctr.*?)```", (ROOT / "docs/tables.md").read_text(), re.DOTALL
    )
    assert source is not None
    ended = Job(tmp_path, source[1], "--pservers", "2", ranks=4).end(within_s=120)
    assert ended.code == 0, ended.err
    assert len(ended.out.splitlines()) == 5
    number, size = r"(\d+)", r"[\d.]+ KiB"
    line = rf"hpcdist: server (\d): embedding_0\.w_0 +{number} +{size} +{size} +{number} +{number}"
    told = sorted(re.findall(line, ended.err))
    assert [server for server, *_ in told] == ["0", "1"]
    for _, rows, pulled, pushed in told:
        assert rows == pulled == pushed
    assert sum(int(rows) for _, rows, *_ in told) == 5 * 64


def test_resnet_50_through_fleet(tmp_path):
    """What the documentation of fleet shows: 161 sums that are 5, and lines of losses."""
    source = (ROOT / "examples" / "resnet.py").read_text()
    options = "--fleet --use-hierarchical-allreduce --image-size 16 --batch-size 4 --epochs 1"
    args = [*options.split(), "--steps", "1"]
    ended = Job(tmp_path, source, ranks=2, args=args).end(within_s=300)
    assert ended.code == 0, ended.err
    number = r"\d+\.\d{5}"
    line = rf"\[Epoch 0, batch 0\] loss: {number}, acc1: {number}, acc5: {number}"
    assert re.fullmatch(line, ended.out.strip())
    said = (
        "hpcdist: Find all_reduce operators: 161. To make the speed faster, some all_reduce ops "
        "are fused during training, after fusion, the number of all_reduce ops is 5."
    )
    assert ended.err.splitlines().count(said) == 1


def losses_by_worker(job):
    ended = job.end()
    assert ended.code == 0, ended.err
    losses: dict[int, list[float]] = {}
    for line in ended.out.splitlines():
        words = line.split()
        losses.setdefault(int(words[1]), []).append(float(words[-1]))
    return losses


def test_a_script_of_fluid_1_8_from_the_command_line(tmp_path):
    script = (ROOT / "examples" / "fleet_fit_a_line.py").read_text()
    options = ("--quiet", "--all-output", "--as-paddle")
    spread = losses_by_worker(Job(tmp_path, script, *options, "--pservers", "2"))
    assert sorted(spread) == [0, 1] and all(len(losses) == 20 for losses in spread.values())
    (alone,) = losses_by_worker(Job(tmp_path, script, *options, mpirun=False)).values()
    assert alone[-1] < alone[0] / 5
    # Equal shares: the mean over workers is the loss of one process on the whole batch.
    assert np.allclose(np.mean([spread[0], spread[1]], axis=0), alone, atol=2e-6)


def test_deepfm_in_paddle_2s_words_trains_on_servers_and_is_saved(tmp_path):
    script = (ROOT / "examples" / "deepfm.py").read_text()
    model = tmp_path / "model"
    options = ("--quiet", "--all-output", "--as-paddle", "--pservers", "1")
    arguments = ["--directory", str(tmp_path), "--save", str(model), "--mode", "async"]
    ended = Job(tmp_path, script, *options, ranks=3, args=arguments).end(within_s=400)
    assert ended.code == 0, ended.err
    (area,) = re.findall(r"^area (0\.\d+)$", ended.out, re.MULTILINE)
    assert float(area) > 0.7
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        program, feeds, targets = fluid.io.load_inference_model(str(model), exe)
        rows = [line.split() for line in (tmp_path / "part-2").read_text().splitlines()]
        fed = {
            "numbers": np.array([row[1:14] for row in rows], "float32"),
            "ids": np.array([row[14:] for row in rows], "int64"),
        }
        (chances,) = exe.run(program, feed={n: fed[n] for n in feeds}, fetch_list=targets)
    clicks = np.array([row[0] == "1" for row in rows])
    # What was saved tells the clicks apart as well as what was trained.
    pairs = chances[clicks].ravel()[:, None] > chances[~clicks].ravel()[None, :]
    assert abs(pairs.mean() - float(area)) < 0.01


def test_clicks_from_files_through_a_pipe_command(tmp_path):
    script = (ROOT / "examples" / "fleet_dataset.py").read_text()
    (tmp_path / "dataset_reader.py").write_text(
        (ROOT / "examples" / "dataset_reader.py").read_text()
    )
    options = ("--quiet", "--all-output", "--as-paddle")
    ended = Job(tmp_path, script, *options, "--pservers", "1", ranks=3).end(within_s=200)
    assert ended.code == 0, ended.err
    (told,) = re.findall(r"(\d+) samples here, area (0\.\d+)", ended.out)
    assert int(told[0]) == 600 and float(told[1]) > 0.75
    lines = [line for line in ended.out.splitlines() if line.startswith("batch 20: worker")]
    assert len(lines) == 2 * 4
