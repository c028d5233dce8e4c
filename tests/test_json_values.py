"""JSON read into types by several threads at once."""

import subprocess
import sys

import msgspec
import pytest

from sulina.json_values import convert_to, decode_json, json_decoder

ROUNDS = 300  # without the lock the process crashed in one of the first twenty
RACE = """
import sys, threading
import msgspec
from sulina.json_values import {function}

sys.setswitchinterval(1e-6)
for _ in range({rounds}):
    inner = msgspec.defstruct("Inner", [(f"f{{i}}", int | str, 0) for i in range(10)], module=__name__)
    outer = msgspec.defstruct("Outer", [(f"g{{i}}", inner | None, None) for i in range(20)], module=__name__)
    given = {{f"g{{i}}": {{"f0": 1}} for i in range(20)}}
    given = msgspec.json.encode(given) if "{function}" == "decode_json" else given
    together, read = threading.Barrier(4), []

    def work():
        together.wait()
        read.append({function}(given, outer))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [outer(**{{f"g{{i}}": inner(f0=1) for i in range(20)}})] * 4
"""


class Point(msgspec.Struct, frozen=True):
    """A place on a plane."""

    x: int
    y: int = 0


@pytest.mark.parametrize("function", ["decode_json", "convert_to"])
def test_l7_threads_that_read_a_type_for_the_first_time_do_not_crash(function: str) -> None:
    race = RACE.format(function=function, rounds=ROUNDS)
    done = subprocess.run([sys.executable, "-c", race], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr or f"it ended with {done.returncode}"


def test_a_document_becomes_a_value_of_its_type() -> None:
    assert decode_json(b'{"x": 1}', Point) == Point(1)
    assert convert_to({"x": 1, "y": 2}, Point) == Point(1, 2)
    assert json_decoder(Point) is json_decoder(Point)


def test_what_is_not_of_the_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        decode_json(b'{"x": "one"}', Point)
    with pytest.raises(msgspec.ValidationError, match="missing required field `x`"):
        convert_to({"y": 2}, Point)
    with pytest.raises(msgspec.DecodeError):
        decode_json(b"{", Point)
