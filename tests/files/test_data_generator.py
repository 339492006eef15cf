"""Scripts that write multi-slot text: data generators of pipe commands."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest

from hpcdist.errors import DataError
from hpcdist.multi_slot import (
    MultiSlotDataGenerator,
    MultiSlotStringDataGenerator,
)

pytestmark = pytest.mark.usefixtures("fresh")


# data generators


class Words(MultiSlotDataGenerator):
    def generate_sample(self, line):
        def samples():
            numbers = [int(word) for word in line.split()] if line else [1, 2]
            yield None
            yield [("words", numbers[1:]), ("label", numbers[:1])]

        return samples


def written(generator, stdin, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    generator.run_from_stdin()
    return capsys.readouterr().out


def test_a_data_generator_writes_multi_slot_text(monkeypatch, capsys):
    assert written(Words(), "1 5 6 7\n0 3\n", monkeypatch, capsys) == "3 5 6 7 1 1\n1 3 1 0\n"
    Words().run_from_memory()
    assert capsys.readouterr().out == "1 2 1 1\n"


def test_a_sample_may_be_what_zip_gives_of_numpys_numbers(monkeypatch, capsys):
    class Zipped(MultiSlotDataGenerator):
        def generate_sample(self, line):
            return lambda: iter([zip(["a", "b"], [[np.int64(5)], [np.float32(0.5), 1]])])

    assert written(Zipped(), "x\n" * 2, monkeypatch, capsys) == "1 5 2 0.5 1\n" * 2


def test_a_data_generator_may_make_samples_of_batches(monkeypatch, capsys):
    class Doubled(Words):
        def generate_batch(self, samples):
            return lambda: iter([*samples, samples[0]])

    generator = Doubled()
    generator.set_batch(2)
    out = written(generator, "1 5 6 7\n0 3\n1 2\n", monkeypatch, capsys)
    assert out == "3 5 6 7 1 1\n1 3 1 0\n3 5 6 7 1 1\n1 2 1 1\n1 2 1 1\n"


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([[("a", [])]], "slot 'a': expected a list of at least one value"),
        ([[("a", 1)]], "slot 'a': expected a list of at least one value, got 1"),
        ([[("a", ["x"])]], "slot 'a': expected numbers, got 'x'"),
        ([[("a", [1])], [("b", [1])]], r"every sample must have the slots \['a'\], got \['b'\]"),
        ([{"a": [1]}], "must yield lists of slots"),
    ],
)
def test_a_data_generator_refuses_what_is_no_sample(samples, message, monkeypatch, capsys):
    class Given(MultiSlotDataGenerator):
        def generate_sample(self, line):
            return lambda: iter(samples)

    with pytest.raises(DataError, match=message):
        written(Given(), "\n", monkeypatch, capsys)


def test_strings_are_written_as_they_are(monkeypatch, capsys):
    class Strings(MultiSlotStringDataGenerator):
        def generate_sample(self, line):
            return lambda: iter([[("words", line.split())]])

    assert written(Strings(), "a 05\n", monkeypatch, capsys) == "2 a 05\n"
    with pytest.raises(NotImplementedError, match="must define generate_sample"):
        written(MultiSlotDataGenerator(), "1\n", monkeypatch, capsys)


def test_a_string_is_a_value_only_if_fluid_writes_it_as_one(monkeypatch, capsys):
    class Strings(MultiSlotStringDataGenerator):
        def generate_sample(self, line):
            return lambda: iter([[("words", ["3", "14"]), ("label", line.strip())]])

    assert written(Strings(), "1\n", monkeypatch, capsys) == "2 3 14 1 1\n"
    with pytest.raises(DataError, match="'label': expected a list of at least one value, got '12'"):
        written(Strings(), "12\n", monkeypatch, capsys)  # Fluid writes the values 1 and 2


def test_a_pipe_command_of_a_script_under_as_paddle_finds_paddle(tmp_path):
    reader = tmp_path / "reader.py"
    reader.write_text(
        "import paddle.fluid.incubate.data_generator as dg\n"
        "class G(dg.MultiSlotDataGenerator):\n"
        "    def generate_sample(self, line):\n"
        "        return lambda: iter([[('n', [int(line)])]])\n"
        "G().run_from_stdin()\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import subprocess, sys\nimport paddle.fluid as fluid\n"
        f"print(subprocess.check_output([sys.executable, {str(reader)!r}], input=b'7\\n'))\n"
    )
    command = [sys.executable, "-m", "hpcdist", "--as-paddle", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "b'1 7\\n'\n"
