"""The log as a DataFrame and as Parquet: decoded with numpy and pyarrow, no message touched twice.

Nothing here is imported by the broker: pyspark, pyarrow and numpy load when they are used.
"""
