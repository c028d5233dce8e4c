"""Found by Spark itself, because of its name: `format("sulina")` needs no registration."""

from sulina.spark.data_source import SulinaDataSource as DefaultSource

__all__ = ["DefaultSource"]
