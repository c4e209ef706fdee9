"""Objects: whole immutable blobs by key, in a local directory or in an S3 bucket, through obstore.

`open_objects` decides by URL.  Nothing that SPACE stores is large (`MAX_BYTES`), so objects are read and written whole.
"""

from space.storage.objects.bucket import MAX_BYTES, BucketObjects
from space.storage.objects.directory import DirectoryObjects
from space.storage.objects.url import open_objects

__all__ = ["MAX_BYTES", "BucketObjects", "DirectoryObjects", "open_objects"]
