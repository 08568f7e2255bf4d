"""Sizes and fractions as text and numbers."""

import pytest

from gpumem.sizes import (
    format_count,
    format_size,
    parse_count,
    parse_fraction,
    parse_seconds,
    parse_size,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (123, 123),
        ("0", 0),
        ("123", 123),
        ("1.5 GiB", 3 << 29),
        ("512M", 512 << 20),
        ("512m", 512 << 20),
        ("1GB", 10**9),
        ("1 GiB", 1 << 30),
        ("1e3MB", 10**9),
        ("2.5e1 kb", 25_000),
        ("10 B", 10),
        ("  7 KiB ", 7168),
        ("0.1 GiB", 107374182),
        ("1TiB", 1 << 40),
        ("1000000e-3", 1000),
    ],
)
def test_parse_size_accepts(value, expected):
    assert parse_size(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "lots",
        "GiB",
        "-1",
        "1 XB",
        "1.",
        ".5G",
        "1 iB",
        "1e+",
        "0x10",
        "1 G B",
        "nan",
    ],
)
def test_parse_size_refuses_text_that_is_no_size(value):
    with pytest.raises(ValueError, match="limit must be an int of bytes"):
        parse_size(value, "limit")


@pytest.mark.parametrize("value", [-1, 1 << 63, 1 << 200, "9e18 GiB", "1e999"])
def test_parse_size_refuses_what_is_out_of_range(value):
    with pytest.raises(ValueError, match=r"from 0 to 2\*\*63 - 1"):
        parse_size(value)


def test_parse_size_refuses_less_than_a_byte():
    with pytest.raises(ValueError, match="less than one byte"):
        parse_size("0.1")


@pytest.mark.parametrize("value", [True, 1.5, None, b"1", [1], float("nan")])
def test_parse_size_refuses_other_types(value):
    with pytest.raises(TypeError, match="reserve must be"):
        parse_size(value, "reserve")


def test_parse_size_takes_index_objects():
    class Seven:
        def __index__(self):
            return 7

    assert parse_size(Seven()) == 7


@pytest.mark.parametrize("value", [1.0, 1, 0.5, 1e-9])
def test_parse_fraction_accepts(value):
    assert parse_fraction(value) == value


@pytest.mark.parametrize(
    "value", [0, 0.0, -0.1, 1.5, 10, 100, float("nan"), float("inf")]
)
def test_parse_fraction_refuses_numbers_out_of_range(value):
    with pytest.raises(ValueError, match=r"0 < fraction <= 1, not"):
        parse_fraction(value)


@pytest.mark.parametrize("value", ["0.5", True, None])
def test_parse_fraction_refuses_other_types(value):
    with pytest.raises(TypeError, match="fraction must be a number"):
        parse_fraction(value)


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan"), "1", True])
def test_parse_seconds_refuses(value):
    with pytest.raises((TypeError, ValueError), match="wait must be a finite number"):
        parse_seconds(value, "wait")


@pytest.mark.parametrize("value", [0, 11, 1.0, True, "3"])
def test_parse_count_refuses(value):
    with pytest.raises((TypeError, ValueError), match="from 1 to 10"):
        parse_count(value, "count", 1, 10)


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3 << 29, "1.50 GiB"),
        (-(10 << 20), "-10.00 MiB"),
        ((1 << 20) - 1, "1.00 MiB"),
        (1 << 62, "4.00 EiB"),
    ],
)
def test_format_size(nbytes, expected):
    assert format_size(nbytes) == expected


def test_format_size_signed():
    assert format_size(1024, signed=True) == "+1.00 KiB"


def test_format_size_is_read_back():
    assert parse_size(format_size(5 << 30)) == 5 << 30


def test_format_count():
    assert format_count(1234567) == "1,234,567"
