"""The command line: its help, its commands, and what it says about mistakes."""

import argparse
import doctest
import os
import re
import resource
import sys
import threading
from types import SimpleNamespace

import pytest

from hpcdist import __main__
from hpcdist.base import hidden
from hpcdist.errors import LaunchError
from hpcdist.launch import (
    command_line,
    commands,
    console,
    fleetrun,
    limits,
    main,
    options,
    start_table,
    words,
)


def refusal(capsys: pytest.CaptureFixture[str], parser, *given: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(given)
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def said_of(action: argparse.Action, value: str) -> str:
    """Return what is said of a value of an argument, or an empty string if it is taken."""
    parser = command_line.Parser()
    try:
        parser._check_value(action, parser._get_value(action, value))  # private: argparse's
    except argparse.ArgumentError as error:
        return error.message
    return ""


def test_every_misspelt_word_of_every_command_is_answered_with_the_one_that_may_be_meant():
    """Of all arguments that say which words they take, in whichever way they are declared."""
    parsers = {name: command.load().parser for name, command in commands.COMMANDS.items()}
    found = set()
    for command, parser in {**parsers, "fleetrun": fleetrun.parser}.items():
        for action in parser()._actions:  # private: argparse's
            listed = said_of(action, "~").removeprefix("expected ").partition(", got ")[0]
            for word in re.split(", | or | of ", listed):
                if not word or " " in word or said_of(action, word):  # "a number", "m:s"
                    continue
                found.add(f"{command} {action.option_strings or action.dest}")
                for typed in (f"{word[:-1]}~", f"x{word}", f"{word.upper()}S"):
                    assert re.search(f"'{typed}'; did you mean '.*'[?]$", said_of(action, typed))
    of_run = ("--role", "--feed", "--dense", "--metrics-also", "--on-failure", "--on-nan")
    actions = ("checkpoint action", "table action", "data action", "completion shell")
    assert found >= {*actions, "slurm ['--mpi']", *(f"run ['{option}']" for option in of_run)}


@pytest.mark.parametrize("name", ["", *commands.COMMANDS])
def test_help_fits_a_screen_and_teaches_by_examples(name, capsys):
    with pytest.raises(SystemExit) as caught:
        main.main([name, "--help"] if name else ["--help"])
    assert not caught.value.code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= command_line.SCREEN[0]
    assert max(map(len, lines)) <= command_line.SCREEN[1]
    if name != "settings":
        assert any("hpcdist" in line for line in lines[1:] if line.startswith("  "))


def test_the_overview_names_all_commands(capsys):
    with pytest.raises(SystemExit) as caught:
        main.main([])
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    for name, command in commands.COMMANDS.items():
        assert f"  {name} " in shown
        assert command.summary in shown


@pytest.mark.parametrize("command", [options, *(c.load() for c in commands.COMMANDS.values())])
def test_help_names_all_options_and_says_where_each_is_told(command, capsys):
    declared = command.parser()
    with pytest.raises(SystemExit):
        declared.parse_args(["--help-all"])
    every = re.findall(r"^  (--?[a-z][a-z-]*)", capsys.readouterr().out, re.MULTILINE)
    assert "--version" in every
    told = declared.format_help()
    assert not [option for option in every if option not in told]


def test_all_options_of_running_have_one_line_of_help(capsys):
    with pytest.raises(SystemExit):
        options.parse(["--help-all"])
    shown = capsys.readouterr().out
    for option in set(options.names()) - {n for n in options.names() if "_" in n}:
        if option not in ("--servers", "--workers", "--endpoints", "--ips", "--gpus"):
            assert option in shown
    for word in ("mpirun -n 4", "srun", "node:*=1", "--as-paddle", "--as-torchrun"):
        assert word in shown


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--psevers", "2", "a.py"], "there is no option --psevers; did you mean '--pservers'?"),
        (["--pservers=1", "--quit", "a.py"], "--quit; did you mean '--quiet'?"),
        (["--log-dri=x", "a.py"], "--log-dri; did you mean '--log-dir'?"),
        (["--wholly-unlike", "a.py"], "there is no option --wholly-unlike"),
        (["-n", "4", "a.py"], "-n is an option of mpirun or srun, before python: mpirun -n 4"),
        (["--nnodes", "2", "a.py"], "--nnodes is torchrun's; mpirun or srun says this"),
        (["-v", "a.py"], "there is no option -v; did you mean '--version' or '--verbose'?"),
        (["--pservers", "many", "a.py"], "argument --pservers: "),
        ([], "script"),
    ],
)
def test_mistakes_in_options(given, said, capsys):
    assert said in refusal(capsys, options.parser, *given)


@pytest.mark.parametrize("name", [n for n in commands.COMMANDS if n != commands.RUN])
def test_mistakes_in_options_of_commands(name, capsys):
    parser = commands.COMMANDS[name].load().parser
    said = refusal(capsys, parser, "--hlep", "x")
    assert said == "hpcdist: error: there is no option --hlep; did you mean '--help'?"


def test_what_only_looks_like_an_unknown_option():
    asked = options.parse(["--log-dir", "x", "--seed", "0", "a.py", "--psevers", "-n", "3"])
    assert (asked.log_dir, asked.script) == ("x", "a.py")
    assert asked.script_args == ("--psevers", "-n", "3")
    asked = options.parse(["-m", "json.tool", "--no-such"])
    assert (asked.module, asked.script, asked.script_args) == (True, "json.tool", ("--no-such",))


def test_one_of_quiet_and_verbose(capsys):
    with pytest.raises(SystemExit):
        options.parse(["--quiet", "--verbose", "a.py"])
    assert "--quiet and --verbose: give one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("docter", "the command 'doctor'"),
        ("b/train", "'b/train.py'"),
        ("tarin.py", "'train.py'"),
        ("b/tarin.py", "'b/train.py'"),
        ("version", "'--version'"),
        ("pservers=2", "'--pservers'"),
    ],
)
def test_a_script_that_is_not_there(given, meant, tmp_path, monkeypatch, capfd):
    (tmp_path / "b").mkdir()
    for name in ("train.py", "b/train.py"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main.main([given])
    assert caught.value.code == 1
    assert f"did you mean {meant}?" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("trian", "no module 'trian' in {here}, and none is installed; did you mean 'train'?"),
        ("packege.train", "no module 'packege' in {here}, and none is installed; did you mean"),
    ],
)
def test_a_module_that_is_not_there(given, said, tmp_path, monkeypatch, capfd):
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/train.py"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main.main(["-m", given])
    assert said.format(here=tmp_path) in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.ipynb", b'{"cells": []}', "a.ipynb is a notebook: jupyter nbconvert"),  # it is Python
        ("a.py", "x = 1".encode("utf-16"), "a.py is no text in UTF-8"),
        ("a.sh", b"#!/bin/bash\npython a.py", "a.sh is no script of Python, it begins with #!/bin"),
        ("h5py.py", b"", "h5py.py in {here} hides the package h5py: give the file another name"),
    ],
)
def test_something_else_instead_of_a_script(name, content, said, tmp_path, monkeypatch, capfd):
    (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main.main([name])
    assert said.format(here=tmp_path) in capfd.readouterr().err


@pytest.mark.parametrize("safe", [False, True])
def test_a_file_that_hides_a_package_is_named_before_it_is_imported(
    safe, tmp_path, monkeypatch, capsys
):
    (tmp_path / "numpy.py").write_text("")
    monkeypatch.setattr(hidden, "FOUND", "" if safe else hidden.hidden_module(str(tmp_path)))
    monkeypatch.setattr("sys.argv", ["hpcdist", "--version"])
    with pytest.raises(SystemExit):
        __main__.main()
    said = capsys.readouterr()
    named = f"hpcdist: numpy.py in {tmp_path} hides the package numpy: give the file another name"
    assert said.err.strip() == ("" if safe else named) and ("hpcdist 1" in said.out) == safe


@pytest.mark.parametrize(
    ("limit", "allowed", "said"),
    [
        (resource.RLIMIT_NOFILE, 20, "may open 20 files, and needs 32 at least: ulimit -n 1024"),
        (resource.RLIMIT_AS, 10**8, "may have 100000000 bytes of addresses, and needs"),
    ],
)
def test_limits_below_which_nothing_can_begin(limit, allowed, said, monkeypatch):
    limits.check_limits()
    found = {limit: allowed}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (found.get(kind, -1), -1))
    with pytest.raises(LaunchError, match=said):
        limits.check_limits()


def test_a_file_that_hides_a_module_of_pythons(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("")
    assert hidden.hidden_module(str(tmp_path)) == ""  # Python has found its own already
    monkeypatch.delitem(sys.modules, "random")
    said = f"random.py in {tmp_path} hides Python's random: give the file another name"
    assert hidden.hidden_module(str(tmp_path)) == said
    assert set(hidden.STANDARD) <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("user", "allowed", "told"), [(7, 44, 1), (7, 46, 0), (7, -1, 0), (0, 5, 0)]
)
def test_a_user_who_may_have_too_few_threads(user, allowed, told, monkeypatch):
    """Numpy's library would end the process by SIGINT, as if somebody had pressed Ctrl-C."""
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, -1))
    monkeypatch.setattr(limits, "threads_of", lambda _: 33)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    said = limits.few_threads()
    words = (
        f"may have {allowed} threads on this host and has 33, where a rank starts up to 12: ulim"
    )
    assert (words in said) == bool(told) == bool(said)


def test_threads_of_a_user_are_counted():
    before = limits.threads_of(os.geteuid())
    ends = threading.Event()
    threads = [threading.Thread(target=ends.wait) for _ in range(200)]
    for thread in threads:
        thread.start()
    try:
        assert limits.threads_of(os.geteuid()) >= min(before, 1) + 200
    finally:
        ends.set()


@pytest.mark.parametrize("target", ["/dev/pts/3", "/home/me/doctor.txt", ""])
def test_a_terminal_that_mpirun_shows_to_its_ranks(target, monkeypatch):
    def read(path):
        assert path == "/proc/4711/fd/1"
        if not target:
            raise PermissionError
        return target

    monkeypatch.setattr(console, "launcher_of", lambda _: 4711)
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("os.readlink", read)
    assert console.on_terminal() == (target != "/home/me/doctor.txt")
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: False))
    assert not console.on_terminal()


@pytest.mark.parametrize("words", [["--pservers", "2"], ["slurm", "--nodes", "2"]])
def test_a_script_that_is_not_named(words, capsys):
    with pytest.raises(SystemExit):
        main.main(words)
    assert capsys.readouterr().err.endswith("the following arguments are required: script\n")


@pytest.mark.parametrize("option", ["--log-dir", "--trace", "--metrics", "--prometheus"])
def test_a_directory_that_is_there_and_cannot_be_written(option, tmp_path, monkeypatch, capfd):
    (tmp_path / "train.py").write_text("print('ran')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: str(path) != ".")
    with pytest.raises(SystemExit):
        main.main([option, ".", "train.py"])
    said = capfd.readouterr()
    assert "cannot write into the " in said.err and "ran" not in said.out


@pytest.mark.parametrize(
    ("error", "where", "named"),
    [
        (ImportError("No module named 'h5py'", name="h5py"), "hpcdist.base.hdf5", "h5py"),
        (ImportError("libgfortran.so.5: cannot open"), "scipy.linalg", "scipy"),
        (ImportError("cannot import name 'x'", name="hpcdist.base"), "hpcdist.launch", "hpcdist"),
    ],
)
def test_a_package_that_cannot_be_imported(error, where, named, monkeypatch, capsys):
    # A module of this name raises the error when it is imported.
    made = {"__name__": where, "error": error}
    exec("def find_spec(name, *_):\n    if name == 'hpcdist.launch.main': raise error", made)
    monkeypatch.delitem(sys.modules, "hpcdist.launch.main")
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(**made), *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        __main__.main()
    said = capsys.readouterr().err.splitlines()
    assert caught.value.code == 1 and len(said) == 2
    assert said[0] == f"hpcdist: {named} cannot be imported by {sys.executable}: {error}"
    assert said[1].endswith(f"-m pip install --force-reinstall {named}")


@pytest.mark.parametrize(
    ("files", "named"), [(["main.py", "data.csv"], "b/main.py"), ([], "b/train.py")]
)
def test_a_directory_instead_of_a_script(files, named, tmp_path, monkeypatch, capfd):
    (tmp_path / "b").mkdir()
    for name in files:
        (tmp_path / "b" / name).write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main.main(["b"])
    said = capfd.readouterr().err
    assert f"Is a directory: name the script in it, such as {named}" in said
    assert "did you mean" not in said


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_each_command_tells_the_version(command, capsys):
    with pytest.raises(SystemExit) as end:
        main.main([command, "--version"])
    assert not end.value.code and capsys.readouterr().out.startswith("hpcdist 1")


def test_the_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main.main(["--version"])
    assert not caught.value.code
    name, number = capsys.readouterr().out.split()
    assert name == "hpcdist"
    assert number[0].isdigit()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(shell, capsys):
    pytest.importorskip("shtab", reason="python -m pip install shtab")
    main.main(["completion", shell])
    text = capsys.readouterr().out
    for word in ("doctor", "--pservers", "--ranks-per-node"):
        assert word in text


@pytest.mark.parametrize("module", [start_table, words])
def test_examples_of_docstrings(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed


def test_hosts_of_a_large_job_are_not_all_named():
    cluster = start_table.Cluster(tuple(range(512)))
    line = start_table.roster(cluster, [f"n{i // 8}" for i in range(512)])
    assert line == (
        "hpcdist: 512 ranks on 64 hosts (n0, n1, n2, n3, ...): 512 trainers (ranks 0-511)"
    )


def test_the_program_is_named_as_it_was_started(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/hpcdist"])
    assert command_line.program() == "hpcdist"
    monkeypatch.setattr("sys.argv", ["/x/hpcdist/__main__.py"])
    assert command_line.program() == "python -m hpcdist"
