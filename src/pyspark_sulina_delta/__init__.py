"""Found by Spark itself, because of its name: `format("sulina-delta")` needs no registration."""

from sulina.spark.delta_data_source import DeltaDataSource as DefaultSource

__all__ = ["DefaultSource"]
