"""Options of the launcher that stand after the script."""

from __future__ import annotations

import argparse
import pickle

import pytest

from hpcdist.launch import options
from hpcdist.launch.script_arguments import ScriptArguments, misplaced, warning

WORDS = ["train.py", "--pservers", "2"]


@pytest.mark.parametrize(
    "look",
    [
        lambda argv: argparse.ArgumentParser().parse_known_args(argv[1:]),
        lambda argv: argv[1],
        lambda argv: argv[-1],
        len,
        list,
        lambda argv: "--pservers" in argv,
        lambda argv: [word for word in argv],  # noqa: C416
        str,
    ],
)
def test_looking_at_the_arguments_is_noticed(look):
    argv = ScriptArguments(WORDS)
    assert argv[0] == "train.py" and not argv.read
    look(argv)
    assert argv.read


def test_they_are_a_list_for_everybody_else():
    argv = ScriptArguments(WORDS)
    assert argv == WORDS and argv[1:] == WORDS[1:]
    assert type(pickle.loads(pickle.dumps(argv))) is list


def test_options_of_ours_are_found_among_the_arguments():
    given = ["--lr", "0.1", "--pservers=2", "--pservers", "2", "--pserver", "--log_dir", "x"]
    assert misplaced(given, options.names()) == ["--pservers=2", "--pservers", "--log_dir"]
    assert "python -m hpcdist --pservers ... t.py" in warning(["--pservers"], "t.py")
