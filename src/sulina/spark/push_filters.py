"""Filters that Spark offers to a reader before the reader plans its tasks.

While `spark.sql.python.filterPushdown.enabled` is off, which is the default, Spark refuses a reader whose class defines
`pushFilters`. A reader that sets the attribute to a `PushFilters` is asked where the setting is on, and left alone
where it is off.
"""

from collections.abc import Callable, Iterable

from pyspark.sql.datasource import DataSourceReader, Filter


class PushFilters:
    """Hands filters to a function. Spark applies all of them again to the rows. Pickled with its reader."""

    __func__ = DataSourceReader.pushFilters  # Spark compares it to see whether the class has defined its own

    def __init__(self, use: Callable[[list[Filter]], None]) -> None:
        self._use = use

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._use(filters)
        return filters
