"""Loop devices free themselves."""

import os
from pathlib import Path

import pytest

from space.host import loop


@pytest.mark.root
def test_a_device_shows_the_file_and_goes_when_closed(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"hello".ljust(1 << 20, b"\0"))
    with image.open("r+b") as file:
        device, descriptor = loop.attach(file.fileno())
    assert os.pread(descriptor, 5, 0) == b"hello"
    backing = Path("/sys/block", device.name, "loop/backing_file")
    assert backing.read_text().strip() == str(image)
    os.close(descriptor)
    assert not backing.exists() or backing.read_text().strip() != str(image)
