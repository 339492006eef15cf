"""Data sets of tables and texts: people, ratings, words, and clicks that are made up."""

import numpy as np
import pytest

from hpcdist.dataset import adult, clicks, files, movielens, text
from hpcdist.errors import DataError
from hpcdist.metrics import Auc


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty HPCDIST_DATA_HOME, and an empty cache."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv(files.DATA_HOME, str(path))
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache" / name)
    return path


# -- adult -----------------------------------------------------------------------------------------
NAMES = [*adult.NUMBERS, *adult.categories, "class"]
ALICE = [20, 10, 0, 0, 40, "Private", "HS", "Single", "Sales", "Wife", "White", "Female", "France"]
BOB = [40, 12, 99, 0, 40, "State", "HS", "Single", "Sales", "Wife", "White", "Male", "France"]


def people(*rows):
    return "\n".join(",".join(map(str, row)) for row in (NAMES, *rows))


def write_people(home, part, *rows):
    (home / adult.FILES[part]).write_text(people(*rows))


def test_people_become_numbers_categories_and_labels(home):
    write_people(home, "train", [*ALICE, "<=50K"], [*BOB, ">50K"])
    write_people(home, "test", [*ALICE[:-1], "Mars", ">50K."])
    assert adult.available()
    (one, two), (three,) = adult.train()(), adult.test()()
    assert [one[2], two[2], three[2]] == [0, 1, 1]
    np.testing.assert_allclose(one[0][:3], [-1, -1, -1])  # mean 0, variance 1; gains as log(1 + x)
    np.testing.assert_allclose(two[0][:3], [1, 1, 1])
    assert one[1].tolist() == [1, 1, 1, 1, 1, 1, 1, 1]
    assert two[1].tolist() == [2, 1, 1, 1, 1, 1, 2, 1]
    assert three[1].tolist() == [1, 1, 1, 1, 1, 1, 1, 0]  # nobody of the training data is there
    assert adult.category_sizes() == (3, 2, 2, 2, 2, 2, 3, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected columns"),
        ("age,class\n1,2\n", r"expected columns \['education_num'"),
        (",".join(NAMES) + "\n1,2\n", "line 2 has 2 values, expected 14"),
        (people(["x"] * 14), "line 2, column age: expected a finite number"),
        (people([*ALICE, "<=50K"], ["nan", *BOB[1:], ">50K"]), "line 3, column age: .*'nan'"),
        (people([*ALICE, "<=50K"], [*BOB, "50K"]), "line 3, column class: .*<=50K.*got '50K'"),
    ],
)
def test_damaged_tables_of_people_are_refused(home, content, message):
    (home / adult.FILES["train"]).write_text(content)
    with pytest.raises(DataError, match=message):
        adult.train()


def test_files_that_are_nowhere_are_asked_for(home):
    assert not adult.available()
    with pytest.raises(DataError, match="adult_train.csv: get adult.data .* HPCDIST_DATA_HOME"):
        adult.train()
    assert not movielens.available()
    with pytest.raises(DataError, match="get ratings.csv of https://files.grouplens.org"):
        movielens.test()


@pytest.mark.skipif(not adult.available(), reason=f"{files.DATA_HOME} lacks a file: {adult.SOURCE}")
def test_the_census_is_all_there():
    train, test = list(adult.train()()), list(adult.test()())
    assert (len(train), len(test)) == (32561, 16281)
    assert np.mean([label for *_, label in train]) == pytest.approx(0.2408, abs=1e-4)
    sizes = np.array(adult.category_sizes())
    ids = np.array([ids for _, ids, _ in (*train, *test)])
    assert (ids.min(axis=0) >= 0).all()
    assert (ids.max(axis=0) < sizes).all()


# -- ratings ---------------------------------------------------------------------------------------
RATINGS = "userId,movieId,rating,timestamp\n"


def write_ratings(home, *rows):
    lines = [RATINGS.strip(), *(",".join(map(str, row)) for row in rows)]
    (home / movielens.FILE).write_text("\n".join(lines))


def test_ratings_come_with_what_the_user_likes(home):
    rows = [
        (7 * user, 10 * movie, 1 + (user * movie) % 9 / 2, 0)
        for user in (1, 2)
        for movie in range(30)
    ]
    write_ratings(home, *rows)
    train, test = list(movielens.train(3)()), list(movielens.test(3)())
    assert len(train) + len(test) == 60
    assert test
    given = {(user // 7 - 1, movie // 10): stars for user, movie, stars, _ in rows}
    assert {(user, movie): stars for user, movie, _, stars in (*train, *test)} == given
    tested = {(user, movie) for user, movie, *_ in test}
    for user, movie, liked, _ in (*train, *test):
        mean = np.mean([s for key, s in given.items() if key[0] == user and key not in tested])
        assert len(liked) <= 3
        assert movie not in liked
        assert all(given[user, other] > mean and (user, other) not in tested for other in liked)
    assert (movielens.max_user_id(), movielens.max_movie_id()) == (1, 29)
    assert movielens.mean_rating() == pytest.approx(np.mean([stars for *_, stars in train]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("user,movie\n", r"expected columns \['userId', 'movieId', 'rating'\] beside"),
        (RATINGS + "1,2,x,4\n", "line 2, column rating: expected a finite number.*got 'x'"),
        (RATINGS + "1,2,3,4\n1,2,nan,4\n", r"line 3, column rating: .* in 0\.5\.\.5, got 'nan'"),
        (RATINGS + "1,2,50,4\n", r"line 2, column rating: .* in 0\.5\.\.5, got '50'"),
        (RATINGS + "1,-2,3,4\n", "line 2, column movieId"),
        (RATINGS + "1,2,3\n", "line 2 has 3 values, expected 4"),
        (RATINGS, "no line of data"),
    ],
)
def test_damaged_ratings_are_refused(home, content, message):
    (home / movielens.FILE).write_text(content)
    with pytest.raises(DataError, match=message):
        movielens.train()


# -- text ------------------------------------------------------------------------------------------
LINES = ["The cat, the dog!", "", *["a cat"] * 17, "the end"]


def test_words_are_counted_and_lines_cut_into_n_grams(tmp_path):
    path = str(tmp_path / "text.txt")
    (tmp_path / "text.txt").write_text("\n".join(LINES))
    words = text.build_dict(2, path)
    assert list(words) == ["<e>", "<s>", "cat", "a", "the", "<unk>"]
    grams = list(text.train(words, 3, path=path)())
    s, e, cat, a, the, unknown = (words[w] for w in ("<s>", "<e>", "cat", "a", "the", "<unk>"))
    assert grams[:3] == [(s, the, cat), (the, cat, unknown), (cat, unknown, the)]
    assert grams[6:8] == [(s, a, cat), (a, cat, e)]
    assert list(text.test(words, 3, path=path)()) == [
        (s, a, cat),
        (a, cat, e),
        (s, the, unknown),
        (the, unknown, e),
    ]
    pairs = list(text.test(words, 0, text.DataType.SEQ, path)())
    assert pairs == [([s, a, cat], [a, cat, e]), ([s, the, unknown], [the, unknown, e])]
    assert next(text.train(words, 3, text.DataType.SEQ, path)()) == ([s, a, cat], [a, cat, e])


def test_a_text_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot read the text .*missing.txt"):
        text.build_dict(1, str(tmp_path / "missing.txt"))
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError, match="n of at least 1, got 0"):
        text.train({"<unk>": 0}, 0, path=str(tmp_path / "empty.txt"))


# -- clicks ----------------------------------------------------------------------------------------
def test_clicks_depend_on_the_seed_only():
    def drawn(reader):
        numbers, ids, clicked = zip(*reader())
        return np.array(numbers), np.array(ids), np.array(clicked)

    first, again = drawn(clicks.train(1500, 3)), drawn(clicks.train(1500, 3))
    longer, other = drawn(clicks.train(3000, 3)), drawn(clicks.train(1500, 4))
    held_back = drawn(clicks.test(1500, 3))
    for a, b in zip(first, again):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(first[1][:1024], longer[1][:1024])
    assert (first[1] != other[1]).any()
    assert (first[1] != held_back[1]).any()
    assert first[0].shape == (1500, clicks.number_num)
    assert first[1].shape == (1500, 26)
    assert (first[1] < np.array(clicks.category_sizes())).all()
    assert (first[1] >= 0).all()


def test_ids_follow_a_power_law_and_clicks_their_chances():
    rows = list(clicks.test(20000)())
    chances, clicked = clicks.chances(20000)
    np.testing.assert_array_equal(clicked, [c for *_, c in rows])
    assert clicked.mean() == pytest.approx(chances.mean(), abs=0.01)
    often = [np.bincount([ids[-1] for _, ids, _ in rows])[k] for k in (0, 1, 3, 7)]
    assert often == sorted(often, reverse=True)
    best = Auc()
    best.update(np.stack([1 - chances, chances], 1), clicked)
    assert 0.75 < best.eval() < 0.85
