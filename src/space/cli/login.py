"""`space login` and `space logout`: a token of one's own on this machine."""

from typing import Annotated

import typer

from space.cli.output import Format, OutputOption, print_json

EXAMPLE = "**Example**\n\n`space login --api-url https://space.example.org --email me@example.org`"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("login", epilog=EXAMPLE)(login)
    app.command("logout")(logout)


def login(
    email: Annotated[str, typer.Option(prompt=True, help="Who you are.")],
    api_url: Annotated[str | None, typer.Option(help="The server; default: SPACE_API_URL or this machine's.")] = None,
    password_stdin: Annotated[bool, typer.Option("--password-stdin", help="Read the password from stdin.")] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Log in with a password and keep the session's token for this user, readable by nobody else."""
    import sys

    from space.sdk import Client
    from space.sdk.settings import user_file, write_cli_file

    password = sys.stdin.readline().rstrip("\n") if password_stdin else typer.prompt("Password", hide_input=True)
    session = Client.login(email, password, api_url=api_url)
    path = user_file()
    write_cli_file(path, api_url=session.api_url, token=session.token)
    if output is Format.JSON:
        print_json({"api_url": session.api_url, "user": dict(session.user), "expires_at": str(session.expires_at)})
    else:
        print(f"logged in at {session.api_url} as {session.user.get('email', email)} until {session.expires_at}")


def logout() -> None:
    """End the session of `space login` and forget its token."""
    from space.sdk import Client, RetryPolicy, SpaceError
    from space.sdk.settings import read_cli_file, user_file

    path = user_file()
    found = read_cli_file(path)
    if found is None:
        print("not logged in")
        return
    path.unlink(missing_ok=True)
    try:
        with Client(found["api_url"], found["token"], retry=RetryPolicy(attempts=1)) as client:
            client.transport.request("DELETE", "/auth/v1/sessions/current")
    except SpaceError as error:
        print(f"forgot the token; the server did not end the session: {error.message}")
        return
    print("logged out")
