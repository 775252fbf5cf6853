"""What makes `spark.read.format("commitlog")` work without any registration call.

This folder is installed as the top-level package `pyspark_commitlog`: when a Python data source is
first asked for, Spark imports every top-level package named `pyspark_*` and registers its
`DefaultSource`.
"""

from __future__ import annotations

from commitbus.flush.spark.data_source import CommitLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
