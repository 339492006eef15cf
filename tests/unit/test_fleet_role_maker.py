from __future__ import annotations

import pytest

from hpcdist.comm.cluster import Cluster
from hpcdist.fleet import Fleet
from hpcdist.fluid.fleet.role_maker import (
    PaddleCloudRoleMaker,
    Role,
    RoleMakerBase,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
    collective_placement,
    placement,
)
from hpcdist.launch import environment

SERVERS = ["127.0.0.1:36001", "127.0.0.2:36001"]
ENV = {"PADDLE_TRAINERS_NUM": "2", "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(SERVERS)}
WORKER = ENV | {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "1"}
SERVER = ENV | {"TRAINING_ROLE": "PSERVER", "POD_IP": "127.0.0.2", "PADDLE_PORT": "36001"}


# -- the environment ---------------------------------------------------------------------------
def test_a_worker_of_the_environment(monkeypatch):
    for name, value in WORKER.items():
        monkeypatch.setenv(name, value)
    role = PaddleCloudRoleMaker()
    role.generate_role()
    assert role.is_worker() and not role.is_server() and not role.is_first_worker()
    assert (role.worker_index(), role.worker_num(), role.server_num()) == (1, 2, 2)
    assert role.get_pserver_endpoints() == SERVERS


def test_a_server_of_the_environment():
    found = placement(SERVER)
    assert (found.role, found.index, found.worker_num) == (Role.SERVER, 1, 2)


def test_what_the_launcher_sets_is_what_it_decided():
    cluster = Cluster((0, 3), (1, 2), ("a:1", "b:2"))
    for rank in range(4):
        found = placement(environment.variables(cluster, rank))
        role = cluster.role_of(rank)
        assert (found.role == Role.SERVER, found.index) == (rank in (1, 2), role.index)
        assert found.worker_num == 2
        assert found.server_endpoints == ("a:1", "b:2")
        assert found.worker_endpoints == cluster.trainer_endpoints


def test_alone_a_process_is_the_only_worker():
    for env in ({}, environment.alone()):
        found = placement(env)
        assert (found.role, found.index, found.worker_num) == (Role.WORKER, 0, 1)
        assert not found.server_endpoints


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"TRAINING_ROLE": "TEST"}, "expected TRAINER or PSERVER, got 'TEST'"),
        ({"TRAINING_ROLE": ""}, "TRAINING_ROLE is not set"),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": ""}, "PADDLE_PSERVERS_IP_PORT_LIST is not set"),
        (
            {"PADDLE_TRAINERS_NUM": "two"},
            "PADDLE_TRAINERS_NUM: expected an .*, got 'two'",
        ),
        ({"PADDLE_TRAINER_ID": "2"}, "PADDLE_TRAINER_ID: expected 0..1 for 2 workers, got 2"),
        ({"TRAINING_ROLE": "PSERVER"}, "POD_IP is not set"),
    ],
)
def test_an_environment_that_makes_no_sense(change, message):
    with pytest.raises(ValueError, match=message):
        placement(WORKER | change)


def test_a_server_that_nobody_named():
    with pytest.raises(ValueError, match=r"127\.0\.0\.9:36001, which is none of"):
        placement(SERVER | {"POD_IP": "127.0.0.9"})


def test_a_collective_environment():
    found = collective_placement({"PADDLE_TRAINER_ENDPOINTS": "a:1,b:2", "PADDLE_TRAINER_ID": "1"})
    assert (found.role, found.index, found.worker_num) == (Role.WORKER, 1, 2)
    alone = collective_placement({})
    assert (alone.index, alone.worker_num, len(alone.worker_endpoints)) == (0, 1, 1)


# -- the user ----------------------------------------------------------------------------------
def test_user_defined_roles():
    worker = UserDefinedRoleMaker(0, Role.WORKER, 2, SERVERS)
    assert worker.is_worker() and worker.is_first_worker() and worker.worker_num() == 2
    server = UserDefinedRoleMaker(
        current_id=1, role=Role.SERVER, worker_num=3, server_endpoints=SERVERS
    )
    assert server.is_server() and server.server_index() == 1
    assert not server.is_first_worker()
    assert "server 1 of 3 workers and 2 servers" in server.to_string()
    both = UserDefinedCollectiveRoleMaker(1, ["a:1", "b:2"])
    assert both.is_worker() and both.worker_num() == 2
    assert both.get_trainer_endpoints() == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"server_endpoints": "127.0.0.1:1"}, TypeError, "server_endpoints: expected a list"),
        ({"server_endpoints": None}, TypeError, "server_endpoints: expected a list"),
        ({"server_endpoints": []}, ValueError, "at least one name"),
        ({"server_endpoints": ["a:1", "a:1"]}, ValueError, "may appear only once"),
        ({"server_endpoints": ["a:1", 2]}, TypeError, "expected a list of strings"),
        ({"role": 0}, TypeError, "expected Role.WORKER or Role.SERVER, got 0"),
        ({"role": "worker"}, TypeError, "expected Role.WORKER or Role.SERVER"),
        ({"current_id": "0"}, TypeError, "current_id: expected an integer, got '0'"),
        ({"current_id": -1}, ValueError, "current_id: expected at least 0, got -1"),
        ({"role": Role.SERVER, "current_id": 2}, ValueError, r"expected 0\.\.1, got 2"),
        ({"worker_num": "1"}, TypeError, "worker_num: expected an integer, got '1'"),
        ({"worker_num": 0}, ValueError, "worker_num: expected at least 1, got 0"),
    ],
)
def test_wrong_roles(change, error, message):
    right = {"current_id": 0, "role": Role.WORKER, "worker_num": 1, "server_endpoints": SERVERS}
    UserDefinedRoleMaker(**right)
    with pytest.raises(error, match=message):
        UserDefinedRoleMaker(**right | change)


@pytest.mark.parametrize(
    ("index", "endpoints", "error"),
    [
        ("1", ["a:1"], TypeError),
        (1, ["a:1"], ValueError),
        (-1, ["a:1"], ValueError),
        (0, None, TypeError),
        (0, [], ValueError),
        (0, ["a:1", "a:1"], ValueError),
        (0, [1], TypeError),
    ],
)
def test_wrong_collective_roles(index, endpoints, error):
    with pytest.raises(error):
        UserDefinedCollectiveRoleMaker(index, endpoints)


def test_the_base_class_knows_nothing():
    with pytest.raises(NotImplementedError, match="use PaddleCloudRoleMaker"):
        RoleMakerBase().is_worker()


# -- split_files -------------------------------------------------------------------------------
def parts(files, workers):
    found = []
    for worker in range(workers):
        fleet = Fleet()
        fleet.init(UserDefinedRoleMaker(worker, Role.WORKER, workers, SERVERS))
        found.append(fleet.split_files(files))
    return found


def test_files_are_split_as_documented():
    assert parts(list("abcde"), 2) == [["a", "b", "c"], ["d", "e"]]
    assert parts(["a", "b"], 3) == [["a"], ["b"], []]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 4, 7, 10])
def test_every_file_goes_to_one_worker_in_order(count, workers):
    files = [f"part-{i}" for i in range(count)]
    found = parts(files, workers)
    assert [file for part in found for file in part] == files
    sizes = [len(part) for part in found]
    assert sizes == sorted(sizes, reverse=True) and max(sizes) - min(sizes) <= 1


def test_files_must_be_a_list():
    fleet = Fleet()
    fleet.init(UserDefinedRoleMaker(0, Role.WORKER, 1, SERVERS))
    with pytest.raises(TypeError, match="expected a list of files"):
        fleet.split_files("part-0")
