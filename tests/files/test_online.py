"""The daily loop in one process: what it waits for, trains, saves, and goes on with."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import checkpoint, online
from hpcdist.checkpoint import preemption, shrink_tables
from hpcdist.errors import CheckpointError, DataError
from hpcdist.fluid.online.days import Days
from hpcdist.serving import Lookup
from tests.support.job import alone
from tests.support.online_days import DAYS, PASSES, ROWS, bits_of, dataset_of, network, write_days


class Killed(BaseException):
    """What ends a run in the middle."""


class Run:
    """The runs of one script, as processes that begin anew: what they did, and reported."""

    def __init__(self, root):
        self.root, self.data = root, root / "data"
        self.calls, self.reports = [], []

    def start(self, killed_at="", saver=checkpoint.Saver, every=1, **options):
        """Train until the end, or raise Killed behind so many calls of a part: "train 2"."""
        name, _, number = killed_at.partition(" ")
        calls = []

        def noted(part, call):
            def called(*args, **kwargs):
                result = call(*args, **kwargs)
                calls.append(part)
                if part == name and calls.count(part) == int(number):
                    raise Killed
                return result

            return called

        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 5
        with alone(), fluid.unique_name.guard(), fluid.program_guard(main, startup):
            variables, chance, loss = network()
            fluid.optimizer.Adagrad(0.1).minimize(loss)
            exe = fluid.Executor()
            exe.run(startup)
            published = {"publish": self.root / "published", "publish_every": 1}
            saves = saver(exe, self.root / "saved", every=every, **published)
            parts = online.of_dataset(exe, dataset_of(variables), chance, variables[-1])
            parts = online.Parts(*(noted(p, getattr(parts, p)) for p in ("load", "score", "train")))
            settings = {
                "first": DAYS[0],
                "last": DAYS[-1],
                "passes": PASSES,
                "shrink": noted("shrink", shrink_tables),
                "after_pass": noted("report", self.reports.append),
                "poll_s": 1e-9,
            } | options
            self.calls.append(calls)
            return online.train(self.data, settings.pop("first"), parts, saves, **settings)


@pytest.fixture
def run(tmp_path):
    write_days(tmp_path / "data")
    return Run(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run that nothing ends leaves."""
    made = Run(tmp_path_factory.mktemp("whole"))
    write_days(made.data)
    made.start()
    return made


def test_each_pass_is_scored_by_the_model_before_it_and_then_trained_once(whole):
    a_pass = ["load", "score", "train"]
    assert whole.calls == [([*a_pass, "report", *a_pass, "shrink", "report"]) * 2]
    told = [(report.day, report.number, report.files, report.rows) for report in whole.reports]
    assert told == [(day, number, 2, ROWS) for day in DAYS for number in (1, 2)]
    assert [report.forgotten is None for report in whole.reports] == [True, False] * 2
    assert str(whole.reports[1]).startswith("20261130 pass 2: 61 rows, AUC 0.4")
    lines = (whole.root / "saved" / "passes.jsonl").read_text().splitlines()
    assert [json.loads(line)["auc"] for line in lines] == [r.auc for r in whole.reports]


def test_the_model_learns_from_pass_to_pass(tmp_path):
    run = Run(tmp_path)
    write_days(run.data, rows=600)
    run.start()
    areas = [report.auc for report in run.reports]
    assert abs(areas[0] - 0.5) < 0.1 and areas[-1] > 0.6, areas


def test_what_is_published_last_is_the_model(whole):
    rows = np.frombuffer(bits_of(whole.root / "saved")["users/rows"], np.float32).reshape(-1, 4)
    ids = np.frombuffer(bits_of(whole.root / "saved")["users/ids"], np.int64)
    with Lookup(whole.root / "published", watch=False) as lookup:
        assert lookup.current.step == 4
        assert (lookup.pull("users", ids) == rows).all()


@pytest.mark.parametrize(
    ("killed_at", "every"),
    [
        ("load 2", 1),
        ("score 4", 3),
        ("train 1", 1),
        ("train 3", 3),
        ("shrink 1", 2),
        ("report 2", 1),
    ],
)
def test_a_run_that_is_killed_goes_on_with_the_bits_of_one_that_is_not(
    run, whole, killed_at, every
):
    with pytest.raises(Killed):
        run.start(killed_at, every=every)
    run.start(every=every)
    assert bits_of(run.root / "saved") == bits_of(whole.root / "saved")
    history = [r.root / "saved" / "passes.jsonl" for r in (run, whole)]
    assert history[0].read_text() == history[1].read_text()
    assert run.start() == 0, "all is done"


def test_a_pass_without_its_file_is_waited_for_and_that_is_said_once(
    run, whole, monkeypatch, caplog
):
    late = run.data / DAYS[1] / PASSES[1] / "data.done"
    late.unlink()
    looks = []

    def find(self, place, real=Days.find):
        if (place.day.day, place.number) == (1, 2):
            looks.append(place)
            if len(looks) == 3:
                late.touch()
        return real(self, place)

    monkeypatch.setattr(Days, "find", find)
    assert run.start() == 4
    said = [r.getMessage() for r in caplog.records if "waiting for" in r.getMessage()]
    assert said == [f"online: 20261201 pass 2: waiting for {late}"] and len(looks) == 3
    assert bits_of(run.root / "saved") == bits_of(whole.root / "saved")


def test_a_day_with_other_directories_says_which_it_has(run, monkeypatch, caplog):
    for day in DAYS:
        (run.data / day / PASSES[1]).rename(run.data / day / "1230")

    looks = []

    def find(self, place, real=Days.find):
        looks.append(place.number)
        if looks.count(2) == 2:
            preemption.told.set()
        return real(self, place)

    monkeypatch.setattr(Days, "find", find)
    try:
        with pytest.raises(SystemExit, match="75"):  # warned while it waits: saves, and ends
            run.start(every=9)
    finally:
        preemption.told.clear()
    assert f"1200/data.done ({run.data / DAYS[0]} has 0000, 1230)" in caplog.text
    assert checkpoint.latest(run.root / "saved").name == "step-000001"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first": "2026-11-30"}, "first: expected a day as YYYYMMDD, got '2026-11-30'"),
        ({"first": "20261131"}, "first: expected a day as YYYYMMDD"),
        ({"last": "20261129"}, "last: 20261129 is before the first day, 20261130"),
        ({"passes": "0000"}, "passes: expected names of directories, got '0000'"),
        ({"passes": [["0000", "1200"], "1200"]}, "each directory in one pass"),
        ({"passes": []}, "passes: expected names"),
        ({"passes": 4}, "passes: expected names of directories, got 4"),
        ({"passes": [4]}, "passes: expected names of directories, got [4]"),
        ({"passes": ["../20261130"]}, "passes: expected names of directories"),
        ({"passes": ["0000", "/tmp"]}, "passes: expected names of directories"),
        ({"done": 3}, "done: expected the name of a file, got 3"),
        ({"done": "a/b"}, "a name as done"),
        ({"poll_s": 0}, "poll_s: expected a number above 0"),
        ({"on_empty": "wait"}, "on_empty: expected 'error' or 'skip'"),
        ({"shrink": 3}, "shrink: expected a function or None, got 3"),
        ({"after_pass": "told"}, "after_pass: expected a function or None, got 'told'"),
        ({"passes": ("",), "done": ""}, "0000: expected a file of rows: passes="),
        ({"passes": ["0600"], "done": ""}, "0600: No such file or directory"),
    ],
)
def test_what_cannot_be_is_refused(run, options, message):
    with pytest.raises(DataError) as error:
        run.start(**options)
    assert message in str(error.value)


@pytest.mark.parametrize("part", ["load", "score", "train"])
def test_parts_that_are_no_functions_are_refused(part):
    parts = {"load": list, "score": list, "train": len, part: 3}
    with pytest.raises(DataError, match=f"Parts: {part}: expected a function, got 3"):
        online.Parts(**parts)


def test_a_directory_that_is_not_there_is_refused(run):
    run.data = run.data / "elsewhere"
    with pytest.raises(DataError, match="elsewhere: there is no such directory of days"):
        run.start()


def test_a_complete_directory_without_data_is_refused(run):
    for path in (run.data / DAYS[0] / PASSES[1]).glob("part-*"):
        path.rename(path.with_name("_" + path.name))
    with pytest.raises(DataError, match="1200: data.done is there, and no data"):
        run.start()


def test_a_pass_without_a_row_is_refused_or_left_out(run):
    for path in (run.data / DAYS[0] / PASSES[1]).glob("part-*"):
        path.write_text("")
    with pytest.raises(DataError, match="20261130 pass 2: there is no row in 2 files"):
        run.start()
    run.start(on_empty="skip")
    assert [report.rows for report in run.reports] == [ROWS, 0, ROWS, ROWS]


def test_other_passes_are_refused_within_a_day_and_taken_between_days(run):
    run.start(last=DAYS[0])
    assert run.start(passes=[PASSES]) == 1
    assert run.reports[-1].rows == 2 * ROWS
    checkpoint_of_other = Run(run.root / "other")
    checkpoint_of_other.data = run.data
    with pytest.raises(Killed):
        checkpoint_of_other.start("load 2")
    with pytest.raises(CheckpointError, match="pass 1 of 2 of a day, which now has 1"):
        checkpoint_of_other.start(passes=[PASSES])


def test_a_checkpoint_of_another_loop_is_refused(run):
    class Foreign(checkpoint.Saver):
        def after_step(self, extra=None):
            super().after_step({"epoch": 3})

    with pytest.raises(Killed):
        run.start("load 2", saver=Foreign)
    with pytest.raises(CheckpointError, match="was not saved by online.train"):
        run.start()


def test_a_checkpoint_that_cannot_be_written_is_put_off(run, whole, caplog):
    class Full(checkpoint.Saver):
        tries = 0

        def _save(self, *args, **kwargs):
            Full.tries += 1
            if Full.tries <= 2:
                raise CheckpointError("step-000001: cannot be written: No space left on device")
            return super()._save(*args, **kwargs)

    assert run.start(saver=Full) == 4
    said = [r.getMessage() for r in caplog.records if r.name == "hpcdist.online"]
    assert sum("put off" in line for line in said) == 1 and said[-1] == "online: checkpoints go on"
    assert bits_of(run.root / "saved") == bits_of(whole.root / "saved")


def test_rows_that_are_scored_and_not_trained_are_told(run):
    saver = checkpoint.Saver(fluid.Executor(), run.root / "saved", main_program=fluid.Program())
    parts = online.Parts(
        lambda files, number: len(files), lambda files: [([0.5], [1])] * files, lambda files: 1
    )
    with alone(), pytest.raises(DataError, match="2 rows were scored, and 1 of them trained"):
        online.train(run.data, DAYS[0], parts, saver, passes=PASSES)


def test_splits_of_a_day():
    assert online.splits(30, 2)[:2] == [["0000", "0030"], ["0100", "0130"]]
    assert sum(map(len, online.splits(5))) == 288
    assert online.splits(720, hourly=True) == [["00"], ["12"]]
    for wrong in ((7,), (30, 5), (0,), (30, 1, True)):
        with pytest.raises(DataError):
            online.splits(*wrong[:2], hourly=len(wrong) > 2)
