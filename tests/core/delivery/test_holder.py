"""Which consumer an exclusive or failover subscription delivers to, where several come."""

import pytest

from sulina.core.delivery.holder import Admission, Holder, admit

ANNA = Holder(consumer="anna", id="1")
ANNA_AGAIN = Holder(consumer="anna", id="2")
BEN = Holder(consumer="ben", id="3")


@pytest.mark.parametrize(
    ("holder", "comer", "attached", "expected"),
    [
        (None, ANNA, None, Admission.MAY_TAKE),  # nobody has it
        (ANNA, ANNA, None, Admission.HOLDS),
        (ANNA, ANNA, {"1"}, Admission.HOLDS),
        (ANNA, ANNA_AGAIN, {"1"}, Admission.MAY_TAKE),  # come back before anybody noticed that it had gone
        (ANNA, BEN, None, Admission.MUST_ASK),
        (ANNA, BEN, {"1", "3"}, Admission.REFUSED),
        (ANNA, BEN, {"2", "3"}, Admission.MAY_TAKE),  # another of the same name is not the holder
        (ANNA, BEN, set(), Admission.MAY_TAKE),
    ],
)
def test_a_subscription_goes_to_another_only_when_its_holder_is_known_to_be_gone(
    holder: Holder | None, comer: Holder, attached: set[str] | None, expected: Admission
) -> None:
    assert admit(holder, comer, attached) is expected
