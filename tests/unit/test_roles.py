from __future__ import annotations

import re

import pytest

from hpcdist.comm.cluster import COLLECTIVE, PSERVER, TRAINER, Cluster, RankRole
from hpcdist.errors import LaunchError
from hpcdist.launch import role_map
from hpcdist.launch.roles import RankFacts, decide, refuse_lone_role


def job(size, *, pservers=None, role_map=None, envs=None, hosts=None):
    envs = envs or [{}] * size
    hosts = hosts or ["n1"] * size
    return [RankFacts(hosts[i], 100 + i, pservers, role_map, envs[i]) for i in range(size)]


def server(ip, ips="a,b", **more):
    return {
        "PADDLE_TRAINING_ROLE": "PSERVER",
        "PADDLE_CURRENT_IP": ip,
        "PADDLE_PSERVER_IPS": ips,
    } | more


def trainer(trainer_id, ips="a,b", **more):
    return {
        "PADDLE_TRAINING_ROLE": "TRAINER",
        "PADDLE_TRAINER_ID": trainer_id,
        "PADDLE_PSERVER_IPS": ips,
    } | more


# -- cluster -----------------------------------------------------------------------------------
def test_cluster_knows_roles_and_ranks():
    cluster = Cluster(trainers=(2, 0), servers=(3, 1))
    assert [cluster.role_of(rank) for rank in range(4)] == [
        RankRole(TRAINER, 1),
        RankRole(PSERVER, 1),
        RankRole(TRAINER, 0),
        RankRole(PSERVER, 0),
    ]
    assert cluster.endpoints == ("ps0:6174", "ps1:6174")
    assert cluster.trainer_endpoints == ("trainer0:6174", "trainer1:6174")
    assert [cluster.rank_of_endpoint(e) for e in cluster.endpoints] == [3, 1]
    assert cluster.size == 4


def test_a_cluster_without_servers_is_collective():
    assert Cluster(trainers=(0, 1)).role_of(1) == RankRole(COLLECTIVE, 1)


@pytest.mark.parametrize(
    ("trainers", "servers", "endpoints", "message"),
    [
        ((0, 1), (1,), (), "exactly one role"),
        ((0,), (2,), (), "exactly one role"),
        ((), (0,), (), "at least one trainer"),
        ((0,), (1, 2), ("a:1",), "as many different endpoints"),
        ((0,), (1, 2), ("a:1", "a:1"), "as many different endpoints"),
    ],
)
def test_a_wrong_cluster_is_refused(trainers, servers, endpoints, message):
    with pytest.raises(LaunchError, match=message):
        Cluster(trainers, servers, endpoints)


def test_unknown_names_and_ranks_are_refused():
    cluster = Cluster((0,), (1,))
    with pytest.raises(LaunchError, match="'nobody:1'.*ps0:6174"):
        cluster.rank_of_endpoint("nobody:1")
    with pytest.raises(LaunchError, match="rank 2 is not one of this job's 2"):
        cluster.role_of(2)


# -- role maps ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "hosts", "trainers", "servers"),
    [
        ("s,s,t,t", "aaaa", (2, 3), (0, 1)),
        ("T, S, T", "aaa", (0, 2), (1,)),
        ("pserver:0-1,trainer:2-3", "aaaa", (2, 3), (0, 1)),
        ("pserver:3,0,trainer:2,1", "aaaa", (2, 1), (3, 0)),
        ("node:b=1", "aabb", (0, 1, 2), (3,)),
        ("node:b=1,a=1", "abab", (0, 1), (3, 2)),
        ("node:*=1", "aabb", (0, 2), (1, 3)),
    ],
)
def test_role_maps(text, hosts, trainers, servers):
    assert role_map.parse(text, list(hosts)) == (trainers, servers)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("s,t", "names 2 ranks, the job has 4"),
        ("pserver:0-1,trainer:2", "exactly one role"),
        ("pserver:0-1,trainer:1-3", "exactly one role"),
        ("pserver:x,trainer:1-3", "cannot read 'pserver:x'"),
        ("node:c=1", "no rank runs on 'c'; the hosts are a,b"),
        ("node:a=3", "a has 2 ranks, cannot give 3"),
        ("node:a=1,a=1", "named twice"),
        ("node:a", "cannot read 'a'"),
        ("first", "expected one of"),
    ],
)
def test_wrong_role_maps_are_refused_with_the_right_ones(text, problem):
    with pytest.raises(LaunchError, match=re.escape(problem)) as caught:
        role_map.parse(text, list("aabb"))
    assert "servers-first" in str(caught.value)


# -- deciding ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("asked", "trainers", "servers"),
    [
        ({"pservers": 2}, (0, 1), (2, 3)),
        ({"pservers": 1, "role_map": "servers-last"}, (0, 1, 2), (3,)),
        ({"pservers": 3, "role_map": "servers-first"}, (3,), (0, 1, 2)),
        ({"role_map": "s,t,t,s"}, (1, 2), (0, 3)),
        ({"role_map": "node:*=1", "hosts": ["x", "x", "y", "y"], "pservers": 2}, (0, 2), (1, 3)),
    ],
)
def test_the_command_line_decides(asked, trainers, servers):
    cluster = decide(job(4, **asked))
    assert (cluster.trainers, cluster.servers) == (trainers, servers)


def test_roles_set_on_every_rank_are_kept():
    envs = [server("b"), trainer("1"), server("a"), trainer("0")]
    cluster = decide(job(4, envs=envs))
    assert cluster.trainers == (3, 1)
    assert cluster.servers == (2, 0)
    assert cluster.endpoints == ("a:6174", "b:6174")


def test_role_maker_variables_are_kept():
    common = {"PADDLE_PSERVERS_IP_PORT_LIST": "h:1,h:2"}
    envs = [
        common | {"TRAINING_ROLE": "PSERVER", "POD_IP": "h", "PADDLE_PORT": "2"},
        common | {"TRAINING_ROLE": "PSERVER", "POD_IP": "h", "PADDLE_PORT": "1"},
        common | {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "0"},
    ]
    cluster = decide(job(3, envs=envs))
    assert cluster.servers == (1, 0)
    assert cluster.endpoints == ("h:1", "h:2")


@pytest.mark.parametrize(
    "facts",
    [
        job(3),
        job(3, pservers=0),
        job(3, role_map="t,t,t"),
        job(3, envs=[{"PADDLE_TRAINING_ROLE": "TRAINER"}] * 3),
    ],
)
def test_without_servers_all_ranks_are_trainers(facts):
    cluster = decide(facts)
    assert (cluster.trainers, cluster.servers) == ((0, 1, 2), ())
    assert cluster.role_of(1).kind == COLLECTIVE


def test_names_of_servers_alone_are_taken():
    envs = [{"PADDLE_PSERVER_IPS": "x,y", "PADDLE_PSERVER_PORT": "7"}] * 3
    assert decide(job(3, pservers=2, envs=envs)).endpoints == ("x:7", "y:7")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (job(4, role_map="servers-first"), "'servers-first' needs --pservers P"),
        (job(4, pservers=4), "leave no trainer among 4 ranks: start 5"),
        (job(2, role_map="s,s"), "at least one trainer"),
        (job(2, pservers=2, role_map="s,t"), "--pservers is 2, but role map 's,t' gives 1"),
        (job(2, pservers=1)[:1] + job(2, pservers=0)[1:], "different --pservers: 1 on rank 0"),
        (job(2, envs=[trainer("0"), {}]), "TRAINER or PSERVER on every rank .* None on rank 1"),
        (job(2, envs=[trainer("0"), server("a")], role_map="t,s"), "roles are given twice"),
        (job(3, envs=[trainer("0", "a"), trainer("0", "a"), server("a", "a")]), "0..1, one each"),
        (job(2, envs=[trainer("0", "a"), server("z", "a")]), "named a:6174, .*z:6174"),
        (job(3, pservers=1, envs=[{"PADDLE_PSERVER_IPS": "a,b"}] * 3), "names 2 servers"),
        (
            job(2, pservers=1, envs=[{"PADDLE_PSERVERS_IP_PORT_LIST": "a"}] * 2),
            "named a, expected host:port",
        ),
    ],
)
def test_jobs_that_make_no_sense_are_refused(facts, message):
    with pytest.raises(LaunchError, match=message):
        decide(facts)


def test_facts_travel_as_bytes():
    facts = job(1, pservers=2, role_map="t", envs=[trainer("0")])[0]
    assert RankFacts.decode(facts.encode()) == facts


def test_one_rank_of_a_job_started_by_hand_is_refused():
    env = server("a") | {"PADDLE_TRAINERS": "2"}
    with pytest.raises(LaunchError, match="mpirun -n 4 python -m hpcdist --pservers 2"):
        refuse_lone_role(env)
    refuse_lone_role({"PADDLE_TRAINING_ROLE": "TRAINER"})
    refuse_lone_role({})
