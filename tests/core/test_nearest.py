"""The name that somebody meant."""

from sulina.core.nearest import did_you_mean, nearest


def test_a_misspelt_name_has_a_nearest_one() -> None:
    assert nearest("ordrs", ["customers", "orders"]) == "orders"
    assert nearest("Orders", ["customers", "orders"]) == "orders"
    assert nearest("amuont", ["AMOUNT", "at"]) == "AMOUNT"


def test_a_name_unlike_all_others_has_none() -> None:
    assert nearest("orders", ["x", "weather"]) is None
    assert nearest("orders", []) is None


def test_a_message_names_the_nearest_or_all_there_are() -> None:
    assert did_you_mean("ordrs", ["orders", "customers"]) == "; did you mean orders?"
    assert did_you_mean("z", ["a", "b"]) == "; known are a, b"
    assert did_you_mean("z", []) == ""
    assert did_you_mean("orders", ["orders", "order"]) == "; did you mean order?"
    assert did_you_mean("orders", ["orders"]) == ""
    assert did_you_mean("z", [f"n{number}" for number in range(12)]).endswith("n9 and 2 more")
