"""Topics in Spark, and tables made of them.

`spark.read.format("sulina")` and `format("sulina-delta")` need no import: Spark finds them by their names. What is here
is the rest: a session that is set up for them, tables read natively, pipelines run from Python, the audit.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sulina.spark.delta_native import read_delta
    from sulina.spark.pipeline.runner import run_pipeline
    from sulina.spark.session import session as spark_session

__all__ = ["read_delta", "run_pipeline", "spark_session"]

_PLACES = {
    "read_delta": ("sulina.spark.delta_native", "read_delta"),
    "run_pipeline": ("sulina.spark.pipeline.runner", "run_pipeline"),
    "spark_session": ("sulina.spark.session", "session"),
}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used, so that the errors can be imported without Spark."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(import_module(module), attribute)
