import json
import os
import stat
from pathlib import Path

import pytest

from space.sdk import NotConfiguredError
from space.sdk.settings import cli_file, read_cli_file, resolve_settings, user_file, write_cli_file


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"SPACE_DATA_DIR": str(tmp_path / "data"), "HOME": str(tmp_path / "home"), **more}


def test_arguments_win_over_the_environment(tmp_path: Path) -> None:
    given = environment(tmp_path, SPACE_API_URL="http://env", SPACE_API_TOKEN="env", SPACE_DATA_PLANE_URL="http://dp/")
    settings = resolve_settings("http://arg/", "arg", environment=given)
    assert (settings.api_url, settings.token, settings.data_plane_url) == ("http://arg", "arg", "http://dp")


def test_the_local_servers_file_is_used_when_nothing_else_says(tmp_path: Path) -> None:
    given = environment(tmp_path)
    write_cli_file(cli_file(given), api_url="http://127.0.0.1:9", token="local")
    settings = resolve_settings(environment=given)
    assert (settings.api_url, settings.token) == ("http://127.0.0.1:9", "local")


def test_the_local_token_is_never_sent_to_a_server_named_elsewhere(tmp_path: Path) -> None:
    given = environment(tmp_path, SPACE_API_URL="https://elsewhere.example")
    write_cli_file(cli_file(given), api_url="http://127.0.0.1:9", token="local")
    with pytest.raises(NotConfiguredError, match="SPACE_API_TOKEN"):
        resolve_settings(environment=given)


def test_a_data_directory_named_on_purpose_wins_over_a_login(tmp_path: Path) -> None:
    given = environment(tmp_path)
    write_cli_file(user_file(given), api_url="http://remote", token="login")
    assert resolve_settings(environment=given).token == "login"
    write_cli_file(cli_file(given), api_url="http://127.0.0.1:9", token="local")
    assert resolve_settings(environment=given).token == "local"


def test_no_token_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotConfiguredError, match="space login"):
        resolve_settings(environment=environment(tmp_path))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"api_url": 1, "token": "x"}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cli.json"
    path.write_text(content)
    with pytest.raises(NotConfiguredError, match=r"cli\.json"):
        read_cli_file(path)


def test_the_file_is_readable_by_its_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_cli_file(tmp_path / "new" / "cli.json", api_url="http://x", token="t")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new" / "cli.json").stat().st_mode) == 0o600
    assert json.loads((tmp_path / "new" / "cli.json").read_text()) == {"api_url": "http://x", "token": "t"}


def test_a_token_does_not_show_in_the_repr() -> None:
    assert "t0ken" not in repr(resolve_settings("http://x", "t0ken", environment={}))
