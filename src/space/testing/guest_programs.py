"""The programs of a fake guest: a handful, and a shell that knows sequences, loops and a few expansions.

exit N   echo … [>&2]   sleep N   a; b   a && b   a || b   for x in 1 2; do …; done   $NAME $? $(seq N)   'x' "x"
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping

from space.testing.guest_files import MemoryFiles
from space_guest.protocol import PTY, STDERR, STDOUT

Write = Callable[[int, bytes], Awaitable[None]]


class _Stdin:
    """What waits to be read, shared by a shell and what it starts."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[bytes, Callable[[], None]]] = deque()
        self.changed = asyncio.Event()
        self.is_ended = False

    async def read(self) -> bytes:
        while not self.waiting and not self.is_ended:
            self.changed.clear()
            await self.changed.wait()
        if not self.waiting:
            return b""
        data, taken = self.waiting.popleft()
        taken()
        return data


class Naps:
    """How long the programs of a process have slept; one that is run again has slept `owed` seconds already."""

    def __init__(self) -> None:
        self.owed = 0.0
        self._slept = 0.0
        self._since: float | None = None

    @property
    def slept(self) -> float:
        """Seconds until now, which is what a later run is owed."""
        begun = 0.0 if self._since is None else asyncio.get_running_loop().time() - self._since
        return self._slept + begun + self.owed

    async def sleep(self, seconds: float) -> None:
        known = min(seconds, self.owed)
        self.owed -= known
        self._slept += known
        self._since = asyncio.get_running_loop().time()
        try:
            await asyncio.sleep(seconds - known)
        finally:
            self._since = None
        self._slept += seconds - known


class ProgramIo:
    """What a program sees of its process."""

    def __init__(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        files: MemoryFiles,
        write: Write,
        *,
        is_terminal: bool = False,
        naps: Naps | None = None,
    ) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.files = files
        self._write = write
        self._is_terminal = is_terminal
        self.naps = naps or Naps()
        self._stdin = _Stdin()

    async def out(self, data: bytes) -> None:
        await self._emit(STDOUT, data)

    async def err(self, data: bytes) -> None:
        await self._emit(STDERR, data)

    async def read(self) -> bytes:
        """Return what came on stdin, `b""` at its end."""
        return await self._stdin.read()

    def give_stdin(self, data: bytes, taken: Callable[[], None]) -> None:
        self._stdin.waiting.append((data, taken))
        self._stdin.changed.set()

    def end_stdin(self) -> None:
        self._stdin.is_ended = True
        self._stdin.changed.set()

    def child(self, argv: list[str], *, to_stderr: bool) -> "ProgramIo":
        """Return what a program sees that this one starts: the same stdin, maybe only stderr to write to."""

        async def write(number: int, data: bytes) -> None:
            await self._write(STDERR if to_stderr and number == STDOUT else number, data)

        found = ProgramIo(argv, self.env, self.cwd, self.files, write, is_terminal=self._is_terminal, naps=self.naps)
        found._stdin = self._stdin
        return found

    async def _emit(self, number: int, data: bytes) -> None:
        if self._is_terminal:
            await self._write(PTY, data.replace(b"\n", b"\r\n"))
        else:
            await self._write(number, data)


Program = Callable[[ProgramIo], Awaitable[int]]


async def _true(io: ProgramIo) -> int:
    return 0


async def _false(io: ProgramIo) -> int:
    return 1


async def _echo(io: ProgramIo) -> int:
    words = io.argv[1:]
    end = "\n"
    if words[:1] == ["-n"]:
        words, end = words[1:], ""
    await io.out((" ".join(words) + end).encode())
    return 0


async def _printf(io: ProgramIo) -> int:
    if len(io.argv) < 2:
        await io.err(b"printf: usage: printf format [arguments]\n")
        return 2
    text = io.argv[1].replace("\\n", "\n").replace("\\t", "\t")
    for word in io.argv[2:]:
        text = re.sub(r"%[sd]", lambda match, word=word: word, text, count=1)  # type: ignore[misc]
    await io.out(text.replace("%%", "%").encode())
    return 0


async def _cat(io: ProgramIo) -> int:
    code = 0
    for name in io.argv[1:] or ["-"]:
        if name == "-":
            while data := await io.read():
                await io.out(data)
        elif (content := io.files.content(_absolute(io, name))) is not None:
            await io.out(content)
        else:
            await io.err(f"cat: {name}: No such file or directory\n".encode())
            code = 1
    return code


async def _sleep(io: ProgramIo) -> int:
    try:
        seconds = float(io.argv[1])
    except (IndexError, ValueError):
        await io.err(b"sleep: invalid time interval\n")
        return 1
    await io.naps.sleep(min(max(seconds, 0), 86_400))
    return 0


async def _seq(io: ProgramIo) -> int:
    try:
        numbers = [int(word) for word in io.argv[1:3]]
        start, end = (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    except (IndexError, ValueError):
        await io.err(b"seq: invalid argument\n")
        return 1
    for first in range(start, end + 1, 1000):
        await io.out("".join(f"{number}\n" for number in range(first, min(first + 1000, end + 1))).encode())
    return 0


async def _yes(io: ProgramIo) -> int:
    line = (" ".join(io.argv[1:]) or "y") + "\n"
    block = line.encode() * max(1, 8192 // len(line))
    while True:
        await io.out(block)


async def _head(io: ProgramIo) -> int:
    """`head -c N /dev/zero`, for much output."""
    try:
        count = int(io.argv[io.argv.index("-c") + 1])
    except (ValueError, IndexError):
        await io.err(b"head: only head -c N /dev/zero\n")
        return 1
    while count > 0:
        await io.out(bytes(min(count, 65536)))
        count -= 65536
    return 0


async def _env(io: ProgramIo) -> int:
    await io.out("".join(f"{name}={value}\n" for name, value in sorted(io.env.items())).encode())
    return 0


async def _pwd(io: ProgramIo) -> int:
    await io.out(f"{io.cwd}\n".encode())
    return 0


async def _whoami(io: ProgramIo) -> int:
    await io.out(f"{io.env['USER']}\n".encode())
    return 0


async def _sh(io: ProgramIo) -> int:
    if len(io.argv) < 3 or io.argv[1] not in ("-c", "-lc", "-ec"):
        while await io.read():
            pass
        return 0
    try:
        return await Shell(io).run(io.argv[2])
    except ShellError as error:
        await io.err(f"sh: {error}\n".encode())
        return 2


PROGRAMS: Mapping[str, Program] = {
    "true": _true,
    "false": _false,
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "sleep": _sleep,
    "seq": _seq,
    "yes": _yes,
    "head": _head,
    "env": _env,
    "pwd": _pwd,
    "whoami": _whoami,
    "sh": _sh,
    "bash": _sh,
}


class ShellError(Exception):
    """A script that this shell does not understand."""


class _Exit(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


_TOKEN = re.compile(
    r"""\s*(?:(&&|\|\||;|\n|>&2|1>&2|[&|<>])|((?:'[^']*'|"(?:\\.|[^"])*"|\$\([^)]*\)|\\.|[^\s;&|<>'"\\])+))"""
)
_PIECE = re.compile(r"""'([^']*)'|"((?:\\.|[^"])*)"|\\(.)|([^'"\\]+)""")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\}|(\?)|\(seq (\d+)(?: (\d+))?\))")
MAX_STEPS = 100_000


class Shell:
    """Runs one script."""

    def __init__(self, io: ProgramIo) -> None:
        self._io = io
        self._code = 0
        self._steps = 0

    async def run(self, script: str) -> int:
        tokens = [match.group(1) or match.group(2) for match in self._scan(script)]
        try:
            await self._sequence(tokens)
        except _Exit as end:
            return end.code
        return self._code

    @staticmethod
    def _scan(script: str) -> Iterator["re.Match[str]"]:
        position = 0
        script = script.rstrip()
        while position < len(script):
            match = _TOKEN.match(script, position)
            if match is None:
                raise ShellError("syntax error")
            yield match
            position = match.end()

    async def _sequence(self, tokens: list[str]) -> None:
        while tokens:
            if tokens[0] in (";", "\n"):
                tokens = tokens[1:]
            elif tokens[0] == "for":
                tokens = await self._loop(tokens)
            else:
                tokens = await self._commands(tokens)

    async def _loop(self, tokens: list[str]) -> list[str]:
        """Run `for NAME in WORDS; do BODY; done`; return what follows."""
        try:
            body_start = tokens.index("do")
            depth, end = 1, body_start
            while depth:
                end += 1
                depth += {"for": 1, "done": -1}.get(tokens[end], 0)
            name, words = tokens[1], [word for word in tokens[3:body_start] if word not in (";", "\n")]
        except (ValueError, IndexError):
            raise ShellError("syntax error: for without do and done") from None
        for word in (item for text in words for item in self._expand(text).split()):
            self._io.env[name] = word
            await self._sequence(tokens[body_start + 1 : end])
        return tokens[end + 1 :]

    async def _commands(self, tokens: list[str]) -> list[str]:
        """Run `a && b || c` up to the next `;`; return what follows."""
        is_wanted = True
        while tokens:
            end = next((i for i, token in enumerate(tokens) if token in (";", "\n", "&&", "||")), len(tokens))
            if is_wanted:
                await self._command(tokens[:end])
            operator = tokens[end] if end < len(tokens) else ";"
            tokens = tokens[end + 1 :]
            if operator in (";", "\n"):
                break
            is_wanted = (self._code == 0) is (operator == "&&")
        return tokens

    async def _command(self, words: list[str]) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS or not words:
            raise ShellError("syntax error" if not words else "the script is too long")
        to_stderr = words[-1] in (">&2", "1>&2")
        argv = [self._expand(word) for word in (words[:-1] if to_stderr else words)]
        if any(word in ("&", "|", "<", ">") for word in words) or not argv:
            raise ShellError("pipes, jobs and redirections are not known here")
        if argv[0] == "exit":
            raise _Exit(int(argv[1]) & 255 if argv[1:] and argv[1].isdigit() else self._code)
        if re.fullmatch(r"\w+=.*", argv[0], re.DOTALL) and len(argv) == 1:
            name, _, self._io.env[name] = argv[0].partition("=")
            return
        program = PROGRAMS.get(argv[0].rpartition("/")[2])
        if program is None:
            await self._io.err(f"sh: {argv[0]}: not found\n".encode())
            self._code = 127
            return
        self._code = await program(self._io.child(argv, to_stderr=to_stderr))
        await asyncio.sleep(0)

    def _expand(self, word: str) -> str:
        def piece(match: "re.Match[str]") -> str:
            single, double, escaped, bare = match.groups()
            if single is not None:
                return str(single)
            if escaped is not None:
                return str(escaped)
            text = re.sub(r'\\([\\"$`])', r"\1", double) if double is not None else bare
            return _VARIABLE.sub(self._value, text)

        return _PIECE.sub(piece, word)

    def _value(self, match: "re.Match[str]") -> str:
        name, braced, code, first, second = match.groups()
        if code:
            return str(self._code)
        if first is not None:
            start, end = (1, int(first)) if second is None else (int(first), int(second))
            return " ".join(str(number) for number in range(start, min(end, start + MAX_STEPS) + 1))
        return self._io.env.get(name or braced, "")


def _absolute(io: ProgramIo, name: str) -> str:
    return name if name.startswith("/") else f"{io.cwd.rstrip('/')}/{name}"
