"""HOST:PORT is read in one way everywhere."""

import pytest

from sulina.addresses import address_text, split_address
from sulina.errors import InvalidSettings


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:9", ("::1", 9)), ("b.example:1", ("b.example", 1))],
)
def test_addresses_are_read_as_brokers_register_them(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address
    assert address_text(*address) == text


@pytest.mark.parametrize(
    "text", ["", "b", ":1", "1", "b:", "b:x", "b:123456", "b:65536", "b:-1", "::1:80", "[::1]", "a b:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="HOST:PORT"):
        split_address(text)


@pytest.mark.parametrize("text", ["80", ":80"])
def test_a_host_may_have_a_default(text: str) -> None:
    assert split_address(text, default_host="127.0.0.1") == ("127.0.0.1", 80)


@pytest.mark.parametrize(("text", "host"), [("b", "b"), ("[::1]", "::1")])
def test_a_port_may_have_a_default(text: str, host: str) -> None:
    assert split_address(text, default_port=2379) == (host, 2379)
