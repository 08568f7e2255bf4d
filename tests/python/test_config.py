"""Options: from calls and from GPUMEM_CONF."""

import pytest

import gpumem
from gpumem import config


def test_configure_sets_one_option_and_no_other():
    before = config.current()
    gpumem.configure(limit="20 GiB")
    gpumem.configure(oom_wait=1)
    assert config.current() == {**before, "limit": 20 << 30, "oom_wait": 1.0}


def test_configure_refuses_an_unknown_option_and_names_the_accepted():
    with pytest.raises(
        TypeError, match="unknown option 'lmit'; the options are limit, "
    ):
        gpumem.configure(lmit=1)


@pytest.mark.parametrize("name", sorted(config.OPTIONS))
def test_configure_refuses_a_bad_value(name):
    with pytest.raises((TypeError, ValueError), match=name):
        gpumem.configure(**{name: object()})


def test_configure_changes_nothing_when_one_value_is_bad():
    before = config.current()
    with pytest.raises(ValueError, match="oom_wait"):
        gpumem.configure(limit=1 << 20, oom_wait=-1)
    assert config.current() == before


@pytest.mark.parametrize("value", [0, -0.1, 1.5, 10, 100, float("nan"), "0.5", True])
def test_configure_refuses_a_memory_fraction_that_is_none(value):
    with pytest.raises((TypeError, ValueError), match="0 < memory_fraction <= 1"):
        gpumem.configure(memory_fraction=value)


def test_configure_changes_a_default_pool_that_lives():
    pool = gpumem.default_pool()
    gpumem.configure(limit="32 MiB", headroom="1 MiB", oom_wait=0)
    assert pool.limit == 32 << 20
    assert pool.options()["headroom"] == 1 << 20
    gpumem.configure(limit=None)
    assert pool.limit is None
    assert pool.options()["headroom"] == 1 << 20


def test_configure_refuses_what_a_living_pool_cannot_change():
    gpumem.default_pool()
    with pytest.raises(gpumem.GpumemError, match=r"max_split cannot change.*reset\(\)"):
        gpumem.configure(max_split="1 MiB")
    assert config.get("max_split") is None


def test_configure_refuses_a_capacity_once_the_device_is_open():
    gpumem.device("host")
    with pytest.raises(gpumem.GpumemError, match="host:0 is open"):
        gpumem.configure(host_capacity="1 GiB")


def test_configure_reserve_larger_than_the_device_names_both():
    gpumem.configure(host_capacity="64 MiB")
    with pytest.raises(ValueError, match=r"reserve=671088640 .* 67108864 bytes"):
        gpumem.configure(reserve="640 MiB")
    assert config.get("reserve") == 0


def test_configure_reserve_takes_memory_of_a_living_pool():
    gpumem.configure(host_capacity="64 MiB")
    gpumem.default_pool()
    gpumem.configure(reserve="8 MiB")
    assert gpumem.memory_reserved() == 8 << 20


def test_configure_reserve_that_fails_leaves_the_former_state():
    gpumem.configure(host_capacity="64 MiB")
    pool = gpumem.default_pool()
    with pytest.raises(gpumem.OutOfMemoryError):
        gpumem.configure(limit="4 MiB", reserve="8 MiB")
    assert pool.limit is None
    assert config.get("reserve") == 0
    assert gpumem.memory_reserved() == 0


def test_configure_without_growth_takes_everything_at_once():
    gpumem.configure(host_capacity="64 MiB", allow_growth=False, limit="32 MiB")
    gpumem.default_pool()
    assert gpumem.memory_reserved() == 32 << 20


def test_limit_is_the_smaller_one_of_limit_and_fraction():
    gpumem.configure(host_capacity="64 MiB", limit="48 MiB", memory_fraction=0.5)
    assert gpumem.default_pool().limit == 32 << 20
    gpumem.configure(limit="16 MiB")
    assert gpumem.default_pool().limit == 16 << 20


def test_gpumem_conf_is_read_on_first_use(monkeypatch):
    monkeypatch.setenv(
        "GPUMEM_CONF", " limit = 20GiB , headroom=0.1,steal=never,decay=2 "
    )
    assert config.get("limit") == 20 << 30
    assert config.get("headroom") == 0.1
    assert config.get("decay") == 2.0


def test_gpumem_conf_empty_is_unset(monkeypatch):
    default = config.current()
    gpumem.reset()
    monkeypatch.setenv("GPUMEM_CONF", "")
    assert config.current() == default


def test_configure_goes_before_gpumem_conf(monkeypatch):
    monkeypatch.setenv("GPUMEM_CONF", "limit=1GiB,oom_wait=3")
    gpumem.configure(limit=None)
    assert config.get("limit") is None
    assert config.get("oom_wait") == 3.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lmit=1", "unknown option 'lmit'; the options are limit"),
        ("limit", "'limit' is not of the form name=value"),
        ("limit=", "is not of the form name=value"),
        ("limit=1,,", "is not of the form"),
        ("limit=lots", "limit=lots: limit must be"),
        ("memory_fraction=1.5", "memory_fraction=1.5: .*0 < memory_fraction <= 1"),
        ("memory_fraction=nan", "memory_fraction=nan"),
        ("gc_on_pressure=maybe", "true or false"),
        ("limit=1,limit=2", "given twice"),
        ("host_devices=0", "from 1 to 64"),
        ("cross_stream=often", "one of 'done', 'wait', 'never'"),
    ],
)
def test_gpumem_conf_malformed_is_an_error_at_first_use(monkeypatch, text, message):
    monkeypatch.setenv("GPUMEM_CONF", text)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"GPUMEM_CONF: .*{message}"):
            config.get("limit")
    monkeypatch.delenv("GPUMEM_CONF")


def test_gpumem_conf_takes_a_fraction_as_text(monkeypatch):
    monkeypatch.setenv("GPUMEM_CONF", "memory_fraction=0.5")
    assert config.get("memory_fraction") == 0.5


def test_show_config_says_where_each_value_is_from(monkeypatch):
    monkeypatch.setenv("GPUMEM_CONF", "decay=2")
    gpumem.configure(limit="1 GiB")
    report = gpumem.show_config()
    sources = {name: source for name, _value, source in report.options}
    assert sources["decay"] == "GPUMEM_CONF"
    assert sources["limit"] == "configure"
    assert sources["headroom"] == "default"
    assert report.to_dict()["limit"] == 1 << 30
    assert "1.00 GiB" in str(report)
    assert "\n" not in repr(report)
    assert "<table" in report._repr_html_()


def test_reset_drops_options_and_reads_the_variable_again(monkeypatch):
    gpumem.configure(limit="1 GiB")
    monkeypatch.setenv("GPUMEM_CONF", "limit=2GiB")
    gpumem.reset()
    assert config.get("limit") == 2 << 30
