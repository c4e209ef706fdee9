"""Objects: whole immutable blobs by key, in a local directory or in an S3 bucket, through obstore.

`open_objects` decides by URL.  Nothing that SPACE stores is large, so objects are read and written whole.
"""

from space.storage.objects.bucket import BucketObjects
from space.storage.objects.directory import DirectoryObjects
from space.storage.objects.url import open_objects

__all__ = ["BucketObjects", "DirectoryObjects", "open_objects"]
