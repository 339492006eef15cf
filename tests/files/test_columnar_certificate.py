"""Certificates: what jobs write about the rows they used proves each once, or says which not."""

import random
import subprocess
import sys

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")

import pyarrow.parquet as pq  # noqa: E402

import hpcdist as fluid  # noqa: E402
from hpcdist.columnar import certificate  # noqa: E402
from hpcdist.comm import run_name  # noqa: E402
from hpcdist.comm.process_manager import run_words  # noqa: E402
from hpcdist.data.columnar.verify import verify  # noqa: E402
from hpcdist.launch import data  # noqa: E402

SIZES = (90, 1, 47)


@pytest.fixture
def files(tmp_path):
    """Write files of uneven sizes, and return a pattern for them."""
    first = 0
    for number, size in enumerate(SIZES):
        columns = {"id": np.arange(first, first + size)}
        pq.write_table(pa.table(columns), tmp_path / f"p{number}.parquet", row_group_size=20)
        first += size
    return str(tmp_path / "*.parquet")


class Job:
    """Trainers that read, one step after the other, in a run of a name of its own."""

    def __init__(self, monkeypatch, files, folder, run, trainers=1, state=None, **how):
        monkeypatch.setattr(certificate, "run_name", lambda: run)
        self.rows = [
            fluid.data.read(files, batch=12, drop_last=True, certificate=folder, **how)
            for _ in range(trainers)
        ]
        if trainers > 1:
            self.rows = [rows.shard(trainers, t) for t, rows in enumerate(self.rows)]
        for rows in self.rows if state else ():
            rows.check([state] * trainers)
            rows.resume(state, None)
        self.passes = [None] * trainers
        self.used = []

    def step(self, living=None):
        """Have the trainers, or some of them, take a batch each."""
        for trainer in range(len(self.rows)) if living is None else living:
            batch = None
            while batch is None:
                if self.passes[trainer] is None:
                    self.passes[trainer] = iter(self.rows[trainer])
                batch = next(self.passes[trainer], None)
                if batch is None:
                    self.passes[trainer] = None
            self.used += batch["id"].tolist()

    def finish(self):
        """Read to the end of the epoch."""
        for number, rows in enumerate(self.rows):
            rest = self.passes[number] or iter(rows)
            self.used += [n for batch in rest for n in batch["id"].tolist()]


def test_an_epoch_that_was_read_is_proved(monkeypatch, files, tmp_path, capsys):
    for trainers in (1, 3):
        folder = tmp_path / f"of-{trainers}"
        job = Job(monkeypatch, files, folder, "a", trainers, shuffle=3, window=50)
        job.finish()
        (verdict,) = verify(folder)
        assert verdict.exact
        assert [(e.used, e.rows, e.complete) for e in verdict.epochs] == [(132, 132, True)]
        data.main(["verify", str(folder)])
        assert "epoch 0: 132 of 132 rows: each row once" in capsys.readouterr().out


def test_a_job_that_goes_on_from_a_checkpoint_with_others_is_proved(monkeypatch, files, tmp_path):
    folder = tmp_path / "log"
    how = {"shuffle": 1, "window": 40}
    first = Job(monkeypatch, files, folder, "a", 3, **how)
    for _ in range(4):
        first.step()
    state = first.rows[0].state()
    saved = len(first.used)
    for _ in range(3):  # lost: the job is killed, and goes back to the checkpoint
        first.step()
    second = Job(monkeypatch, files, folder, "b", 2, state, **how)
    second.finish()
    assert sorted(first.used[:saved] + second.used) == sorted(set(second.used + first.used))
    assert len(first.used[:saved] + second.used) == 132
    (verdict,) = verify(folder)
    assert verdict.exact and verdict.runs == 2 and verdict.rolled_back == 36
    assert [(e.used, e.complete) for e in verdict.epochs] == [(132, True)]


def test_a_job_may_seem_to_have_started_behind_the_one_that_went_on(monkeypatch, files, tmp_path):
    folder = tmp_path / "log"
    with monkeypatch.context() as patch:
        patch.setattr(certificate.time, "time", lambda: 2e9)  # on a host whose clock is ahead
        first = Job(monkeypatch, files, folder, "a")
        first.step()
    Job(monkeypatch, files, folder, "b", state=first.rows[0].state()).finish()
    (verdict,) = verify(folder)
    assert verdict.exact and verdict.runs == 2


def test_rows_of_a_trainer_that_died_are_named(monkeypatch, files, tmp_path, capsys):
    folder = tmp_path / "log"
    job = Job(monkeypatch, files, folder, "a", 2)
    job.step()
    job.step()  # the last that trainer 1 takes: who knows whether it was trained
    job.step([0])
    job.step([0])
    (verdict,) = verify(folder)
    (epoch,) = verdict.epochs
    assert not verdict.exact and not epoch.complete
    assert epoch.in_flight == [*range(36, 42), *range(18, 24)]
    assert sorted(epoch.missing) == [*range(30, 36)]
    with pytest.raises(SystemExit):
        data.main(["verify", str(folder)])
    said = capsys.readouterr().out
    assert "not used: 6 rows" in said and "p0.parquet, block 1, rows 10:16" in said
    assert "in flight when a trainer ended: 12 rows" in said


def test_what_was_left_out_is_named(monkeypatch, tmp_path):
    pq.write_table(pa.table({"id": [0, None, *range(2, 24)]}), tmp_path / "a.parquet")
    folder = tmp_path / "log"
    Job(monkeypatch, str(tmp_path / "a.parquet"), folder, "a", on_bad="skip", shuffle=2).finish()
    (verdict,) = verify(folder)
    assert verdict.exact
    assert [(e.used, e.skipped) for e in verdict.epochs] == [(23, 1)]
    assert "row 1, column 'id': the value is null" in verdict.left_out[0]


def test_rows_that_were_used_twice_are_named(monkeypatch, files, tmp_path):
    folder = tmp_path / "log"
    first = Job(monkeypatch, files, folder, "a", 1)
    first.step()
    state = first.rows[0].state()
    first.step()
    second = Job(monkeypatch, files, folder, "b", 1, state)
    second.rows[0].position = 0  # though the checkpoint says that these rows were trained
    second.finish()
    (verdict,) = verify(folder)
    assert verdict.epochs[0].repeated == list(range(12))


def test_the_ranks_of_a_run_have_its_name_in_common():
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    assert run_words({}) == run_words({"SLURM_JOB_ID": "7"}) == ()
    assert run_words({"PMIX_NAMESPACE": "prterun-n1-5@1"}) == ("prterun-n1-5@1",)
    assert run_words(slurm) != run_words({**slurm, "SLURM_RESTART_COUNT": "1"}) != ()


@pytest.mark.parametrize("how", ["digest", "position", "line"])
def test_lines_that_were_changed_are_found(monkeypatch, files, tmp_path, how):
    folder = tmp_path / "log"
    Job(monkeypatch, files, folder, "a", 1).finish()
    (path,) = folder.glob("rows-*")
    lines = path.read_text().split("\n")
    words = lines[3].split(" ")
    if how == "digest":
        words[4] = "0" * 16
    elif how == "position":
        words[2:4] = ["36", "48"]
    lines[3:4] = [" ".join(words)] if how != "line" else []
    path.write_text("\n".join(lines))
    (verdict,) = verify(folder)
    assert not verdict.exact
    assert "the digest differs" in verdict.damage[0]


def test_every_reader_of_the_newest_job_has_a_verdict(monkeypatch, files, tmp_path, capsys):
    folder = tmp_path / "log"
    Job(monkeypatch, files, folder, "old", 1).step()  # and nobody went on from it
    first = Job(monkeypatch, files, folder, "a", 2, shuffle=3)
    first.finish()
    second = Job(monkeypatch, files, folder, "a", 2, shuffle=4)  # another order of the same files
    second.step()
    second.step([0])
    verdicts = verify(folder)
    assert sorted(verdict.exact for verdict in verdicts) == [False, True]
    assert [verdict.runs for verdict in verdicts] == [1, 1]
    with pytest.raises(SystemExit):
        data.main(["verify", str(folder)])
    said = capsys.readouterr().out
    assert "epoch 0: 132 of 132 rows: each row once" in said
    assert "epoch 0, under way:" in said and said.endswith("not every row exactly once\n")


def test_what_a_reader_used_before_it_was_restored_does_not_count(monkeypatch, files, tmp_path):
    folder = tmp_path / "log"
    before = Job(monkeypatch, files, folder, "a", 1)
    before.step()
    state = before.rows[0].state()
    job = Job(monkeypatch, files, folder, "b", 1)
    job.step()
    (rows,) = job.rows
    rows.resume(state, None)
    assert len([n for batch in rows for n in batch["id"]]) == 120
    (verdict,) = verify(folder)
    assert verdict.exact and verdict.runs == 2
    assert [(epoch.used, epoch.complete) for epoch in verdict.epochs] == [(132, True)]


def test_trainers_that_divide_the_rest_of_an_epoch_are_proved(monkeypatch, files, tmp_path):
    monkeypatch.setattr(certificate, "run_name", lambda: "a")
    for trainer in range(2):
        monkeypatch.setenv("PADDLE_TRAINER_ID", str(trainer))
        rows = fluid.data.read(files, batch=12, drop_last=True, certificate=tmp_path / "log")
        next(iter(rows))
        assert sum(len(batch["id"]) for batch in rows.shard(2, trainer)) == 60
    (verdict,) = verify(tmp_path / "log")
    assert verdict.exact and [(epoch.used, epoch.complete) for epoch in verdict.epochs] == [
        (132, True)
    ]


def test_other_jobs_in_the_directory_are_counted(monkeypatch, files, tmp_path, capsys):
    folder = tmp_path / "log"
    Job(monkeypatch, files, folder, "a", 2).step()
    Job(monkeypatch, files, folder, "b", 3).finish()
    (verdict,) = verify(folder)
    assert verdict.exact and (verdict.runs, verdict.others) == (1, 1)
    data.main(["verify", str(folder)])
    assert "1 runs ignored" in capsys.readouterr().out


def test_the_launcher_names_a_run(monkeypatch):
    alone = certificate.run_name()
    monkeypatch.setattr(run_name, "BEGUN_NS", 5)  # a process with this number, another day
    assert certificate.run_name() != alone
    monkeypatch.setenv("PMIX_NAMESPACE", "prterun-n1-5@1")  # both come again in containers
    names = []
    for run in ("n1-5-7", "n1-5-8"):
        monkeypatch.setenv("HPCDIST_RUN", run)
        names.append(certificate.run_name())
    assert names[0] != names[1]


def test_a_verdict_needs_no_pyarrow(monkeypatch, files, tmp_path):
    folder = tmp_path / "log"
    Job(monkeypatch, files, folder, "a", 1).finish()
    without = "import sys; sys.modules['pyarrow'] = None; from hpcdist.launch import data; "
    command = [sys.executable, "-c", without + f"data.main(['verify', {str(folder)!r}])"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "every row exactly once" in done.stdout


@pytest.mark.parametrize("seed", range(12))
def test_random_restarts_lose_and_repeat_no_row(monkeypatch, files, tmp_path, seed):
    """Kills in the middle of epochs, m trainers to n, checkpoints every few steps."""
    draw = random.Random(seed)
    how = {"shuffle": draw.choice([None, seed]), "window": draw.choice([1, 30, 500])}
    how["lanes"] = draw.choice([1, 2, 6])
    folder = tmp_path / "log"
    state, kept = None, []
    for run in range(8):
        job = Job(monkeypatch, files, folder, f"run{run}", draw.randint(1, 6), state, **how)
        before = len(kept)
        for _ in range(draw.randint(1, 14)):
            job.step()
            if draw.random() < 0.3:
                state = job.rows[0].state()
                kept[before:] = job.used
    (verdict,) = verify(folder)
    assert verdict.damage == []
    for epoch in verdict.epochs:
        assert not epoch.missing and not epoch.repeated
        assert len(epoch.in_flight) in (0, 12)  # of the last step, which was not confirmed
    epochs = [kept[first : first + 132] for first in range(0, len(kept), 132)]
    assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
