"""Everything that answers HTTP; `create_api` and `create_data_plane` make its two servers from `Services`."""

from space.server.api import create_api
from space.server.dataplane.app import create_data_plane
from space.server.services import Services

__all__ = ["Services", "create_api", "create_data_plane"]
