"""Finding messages by key and time: the hash index on disk."""

from commitbus.indexfile.index_file import IndexFile
from commitbus.indexfile.index_format import KeyKind
from commitbus.indexfile.index_reader import IndexReader
from commitbus.indexfile.index_service import IndexService

__all__ = ["IndexFile", "IndexReader", "IndexService", "KeyKind"]
