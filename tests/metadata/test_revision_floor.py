"""R10: a store that shows an older revision than before answers nothing until its new history is accepted."""

import pytest

from sulina.errors import MetadataWentBack
from sulina.metadata.memory import MemoryMetadata
from sulina.metadata.revision_floor import RevisionFloor


def test_r10_an_answer_with_an_older_revision_shows_that_the_store_went_back() -> None:
    floor, told = RevisionFloor(), []
    floor.listen(lambda: told.append(floor.went_back))
    floor.seen(10, floor=0)
    floor.seen(9, floor=9)  # asked before revision 10 was seen
    assert (floor.revision, told) == (10, [])
    with pytest.raises(MetadataWentBack, match="at revision 9 and was at 10"):
        floor.seen(9, floor=10)
    with pytest.raises(MetadataWentBack):
        floor.check()
    assert told == [floor.went_back]
    floor.accept()
    floor.check()
    floor.seen(3, floor=floor.revision)
    assert told[-1] is None


def test_r10_what_was_seen_in_an_earlier_life_counts() -> None:
    floor = RevisionFloor()
    floor.expect(50)
    with pytest.raises(MetadataWentBack):
        floor.seen(49, floor=floor.revision)


async def test_r10_a_store_that_went_back_answers_nothing_but_a_peek() -> None:
    store = MemoryMetadata()
    store.history.declare("it was restored")
    for call in (store.get("/a"), store.list("/"), store.txn(), store.lease(1.0)):
        with pytest.raises(MetadataWentBack, match="sulina cluster recover"):
            await call
    assert await store.peek("/a") is None
    store.history.accept()
    assert await store.get("/a") is None
    await store.close()
