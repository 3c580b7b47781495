"""Texts: tokens, true lengths, masks, AG News in its publisher's layout, a column of a table, arrays of tokens."""

import numpy as np
import pytest
import torch
from publishers import write_ag_news

from fedsim.data import Subset, store
from fedsim.data.inputs import CLASS, PADDING, UNKNOWN, InputShape, lengths_of, mask_of, trimmed
from fedsim.data.sources import Wish, texts
from fedsim.errors import UserError


def test_a_row_is_the_class_token_then_the_words_then_padding():
    tokens = texts.encode(["The cat, the dog.", "A cat!"], Wish(length=8))
    # By frequency, then by the alphabet: cat, the (2 each), then "!", ",", ".", "a", "dog".
    number = {word: 3 + place for place, word in enumerate(["cat", "the", "!", ",", ".", "a", "dog"])}
    first = [CLASS, *(number[word] for word in ["the", "cat", ",", "the", "dog", "."]), PADDING]
    second = [CLASS, *(number[word] for word in ["a", "cat", "!"]), *[PADDING] * 4]
    assert tokens.rows.tolist() == [first, second]
    assert tokens.vocabulary == 10
    rows = torch.from_numpy(tokens.rows)
    assert lengths_of(rows).tolist() == [7, 4]
    assert mask_of(rows).sum(dim=1).tolist() == [7, 4]
    assert trimmed(rows).shape == (2, 7)


def test_rare_words_are_unknown_and_long_texts_are_cut():
    tokens = texts.encode(["b b b a a c", "b"], Wish(vocabulary=5, length=4))
    assert tokens.vocabulary == 5
    assert tokens.rows.tolist() == [[CLASS, 3, 3, 3], [CLASS, 3, 0, 0]]
    assert texts.encode(["c a b", "a b"], Wish(vocabulary=5, length=9)).rows[0, 1] == UNKNOWN


def test_the_published_preparation_has_no_class_token_and_no_true_length():
    tokens = texts.encode(["a b", "a"], Wish(length=5, published=True))
    assert tokens.rows[:, 0].tolist() == [UNKNOWN, UNKNOWN]
    assert lengths_of(torch.from_numpy(tokens.rows)).tolist() == [5, 5]


def test_an_empty_text_has_length_one():
    assert lengths_of(torch.zeros(2, 4, dtype=torch.int64)).tolist() == [1, 1]


def test_ag_news_as_published(tmp_path, cache):
    write_ag_news(tmp_path)
    dataset = store.open_dataset("ag_news", str(tmp_path)).dataset
    assert dataset.inputs.shape == (16, 200)
    assert dataset.input_shape == InputShape((200,), "tokens", dataset.vocabulary)
    assert dataset.num_train == 12
    assert [dataset.class_name(label) for label in dataset.labels[:4]] == [
        "World",
        "Sports",
        "Business",
        "Sci/Tech",
    ]
    inputs, labels = next(Subset(dataset, np.arange(16)).batches(5))
    assert inputs.dtype == torch.int64
    assert labels.tolist() == [0, 1, 2, 3, 0]
    # "Peace Treaty 0 The peace treaty, again." and the class token.
    assert lengths_of(inputs)[0] == 10
    small = store.open_dataset("ag_news", str(tmp_path), wish=Wish(vocabulary=8, length=6)).dataset
    assert (small.inputs.shape[1], small.vocabulary) == (6, 8)
    assert small.fingerprint != dataset.fingerprint


def test_a_missing_or_broken_file_of_ag_news_is_named(tmp_path, cache):
    made = write_ag_news(tmp_path)
    (made / "train.csv").write_text('"1","title","text"\n"7","title","text"\n')
    with pytest.raises(UserError, match=r"train.csv has \['7'\] and 3 columns in row 2; .* a class from 1 to 4"):
        store.open_dataset("ag_news", str(tmp_path))
    (made / "test.csv").unlink()
    with pytest.raises(UserError, match=r"holds train.csv of AG News but not test.csv; put it there too"):
        store.open_dataset("ag_news", str(tmp_path))
    (made / "train.csv").unlink()
    with pytest.raises(UserError, match=r"ag_news is in none of .*; put the publisher's folder ag_news_csv"):
        store.open_dataset("ag_news", str(tmp_path))


def test_a_column_of_a_table_may_hold_texts_and_another_one_say_whose_they_are(tmp_path, cache):
    path = tmp_path / "reviews.csv"
    path.write_text("id,who,review,stars\n1,ann,Good book,good\n2,bob,Bad book,bad\n3,ann,,good\n")
    stored = store.open_dataset(str(path), label="stars", wish=Wish(text="review", group="who", length=4))
    assert stored.dataset.class_names == ["bad", "good"]
    assert stored.dataset.inputs[2].tolist() == [CLASS, 0, 0, 0]
    assert stored.groups.tolist() == [0, 1, 0]
    assert stored.group_names == ("ann", "bob")
    for wish, message in (
        (Wish(text="reviw"), "called 'reviw'; did you mean review?"),
        (Wish(text="stars"), "cannot be texts and classes"),
        (Wish(text="review", group="whom"), "called 'whom'; did you mean who?"),
        (Wish(text="review", vocabulary=3), "leaves no room for words"),
        (Wish(text="review", tokenizer="./nowhere"), "is no folder; give one that a Hugging Face tokenizer"),
    ):
        with pytest.raises(UserError, match=message.replace("?", r"\?")):
            store.open_dataset(str(path), label="stars", wish=wish)


def test_options_of_texts_are_refused_where_there_are_none(cache):
    for wish, message in (
        (Wish(vocabulary=100), "data.vocabulary = 100 is about texts, and digits holds none; unset it"),
        (Wish(group="who"), "data.group = 'who' names a column of a table"),
        (Wish(published=True), "data.preparation = published is for ag_news, har, pamap2; digits has but one"),
    ):
        with pytest.raises(UserError, match=message):
            store.open_dataset("digits", wish=wish)


def test_arrays_of_whole_numbers_are_texts_where_a_vocabulary_says_so(tmp_path, cache):
    path = tmp_path / "own.npz"
    rows = np.array([[2, 5, 0], [2, 3, 4], [2, 4, 0]])
    np.savez(path, x=rows, y=[0, 1, 1], vocabulary=6, subjects=["b", "a", "b"])
    stored = store.open_dataset(str(path))
    assert stored.dataset.input_shape == InputShape((3,), "tokens", 6)
    assert stored.dataset.inputs.tolist() == rows.tolist()
    assert (stored.groups.tolist(), stored.group_names) == ([1, 0, 1], ("a", "b"))
    for arrays, message in (
        ({"x": rows}, r"whole numbers \(N, L\) are texts where `vocabulary` beside them says"),
        ({"x": rows, "vocabulary": 5}, "has tokens from 0 to 5, but its vocabulary of 5 goes from 0 to 4"),
        ({"x": rows - 1, "vocabulary": 9}, "has tokens from -1 to 4"),
        ({"x": rows / 2, "vocabulary": 9}, "has a vocabulary of 9 tokens but inputs of type float64"),
        ({"x": rows, "vocabulary": 6, "groups": [0, 1]}, "says of 2 samples whose they are, and holds 3"),
    ):
        np.savez(path, y=[0, 1, 1], **arrays)
        with pytest.raises(UserError, match=message):
            store.open_dataset(str(path))


def test_shapes_know_what_they_are_of():
    image, signal = InputShape((9, 1, 128), "image"), InputShape((9, 1, 128), "signal")
    assert image == (9, 1, 128) != signal
    assert signal != image
    assert {image: 1, signal: 2}[signal] == 2
    assert signal.letters == {"ch": 9, "sensors": 1, "length": 128}
    assert InputShape((200,), "tokens", 50).letters == {"length": 200, "vocab": 50}
    assert InputShape((7,)).letters == {"dim": 7}
    assert [str(shape) for shape in (image, signal, InputShape((5,), "tokens", 9), InputShape((2,)))] == [
        "images of 9x1x128", "signals of 9x1x128", "5 tokens", "2 numbers",
    ]  # fmt: skip
