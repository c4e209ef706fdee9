"""Moments of machines as chunks in the object store, and as directories on this node's disk.

Everything is looked at in pages of 4 KiB, because that is what changes between two moments of a machine.  A page that
this image or its base already has is referred to; the others are packed, in order, into chunks of 1 MiB.  `pages.py`
decides, `manifest.py` is what is written down, `objects.py` what is stored, `images.py` the door.
"""

from space.node.snapshots.image import Image
from space.node.snapshots.images import Images

__all__ = ["Image", "Images"]
