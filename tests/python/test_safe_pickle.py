"""The reader of strangers' pickles builds plain data and calls nothing."""

import collections
import copyreg
import datetime
import os
import pickle

import pytest

from gpumem._safe_pickle import load_plain_pickle


class Payload:
    """Its pickle makes a file when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_of_every_protocol_is_read(protocol):
    content = {
        "list": [1, -2, 3.5, 10**30],
        "tuple": (True, False, None),
        "text": "grün",
        (0, 1): {"nested": [{}, [], ()]},
    }
    assert load_plain_pickle(pickle.dumps(content, protocol)) == content


@pytest.mark.parametrize("content", [{1, 2}, frozenset({3}), b"bytes"])
def test_sets_and_bytes_are_plain(content):
    assert load_plain_pickle(pickle.dumps(content, 4)) == content


def test_nothing_is_called(tmp_path):
    made = tmp_path / "made"
    data = pickle.dumps(Payload(str(made)))
    with pytest.raises(ValueError, match=r"mkdir; only plain"):
        load_plain_pickle(data)
    assert not made.exists()


@pytest.mark.parametrize(
    "content",
    [
        collections.OrderedDict(a=1),
        datetime.date(2020, 1, 1),
        len,
        int,
        Payload,
        ValueError("x"),
        complex(1, 2),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_objects_are_refused_by_name(content, protocol):
    with pytest.raises(ValueError, match="not a plain pickle: the file asks for"):
        load_plain_pickle(pickle.dumps(content, protocol))


def test_names_of_protocol_0_are_refused():
    with pytest.raises(ValueError, match=r"asks for os\.system"):
        load_plain_pickle(b"cos\nsystem\n(S'true'\ntR.")


@pytest.mark.parametrize(
    "data", [b"Pname\n.", b"\x80\x04\x8c\x01xQ."], ids=["text", "binary"]
)
def test_references_to_the_outside_are_refused(data):
    with pytest.raises(ValueError, match="objects outside itself"):
        load_plain_pickle(data)


@pytest.mark.parametrize("used_before", [False, True])
def test_extension_codes_are_refused(used_before):
    code = 0x7FFFFFF0
    data = b"\x80\x02\x84" + code.to_bytes(4, "little") + b"."
    copyreg.add_extension("os", "system", code)
    try:
        if used_before:
            assert pickle.loads(data) is os.system
        with pytest.raises(ValueError, match="extension"):
            load_plain_pickle(data)
    finally:
        copyreg.remove_extension("os", "system", code)


def test_attributes_of_nothing_can_be_set():
    with pytest.raises(ValueError, match="not a plain pickle"):
        load_plain_pickle(b"\x80\x02}}U\x01aK\x01sb.")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x04",
        b"\x80\x7f.",
        b"0.",
        b"text",
        b"\x80\x04\x8e" + (1 << 60).to_bytes(8, "little"),
        pickle.dumps(list(range(1000)))[:-5],
    ],
)
def test_damaged_data_is_a_value_error(data):
    with pytest.raises(ValueError, match="not a plain pickle"):
        load_plain_pickle(data)
