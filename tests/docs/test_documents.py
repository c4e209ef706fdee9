"""The documents say what is true: generated parts are fresh, links lead somewhere, settings are all described."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from space.config import Settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts/generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_as_the_code_says(generator: ModuleType) -> None:
    for name in generator.DOCUMENTS:
        text = (ROOT / name).read_text()
        assert text == generator.generate(text), f"{name} is stale; run: python scripts/generate_docs.py"


def test_every_generated_part_is_in_a_document(generator: ModuleType) -> None:
    everything = "\n".join((ROOT / name).read_text() for name in generator.DOCUMENTS)
    for part in generator.PARTS:
        assert f"<!-- generated: {part} -->" in everything


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(document: Path) -> None:
    text = document.read_text()
    named = set(re.findall(r"`((?:docs|scripts|src|tests|requirements|changelog\.d)/[\w./-]+)`", text))
    named |= {
        f"src/space/{name}" for name in re.findall(r"`((?:core|host|server|control|node|runtimes|sdk)/[\w./-]+)`", text)
    }
    # NAME and the like stand for what a reader is to make.
    assert {name for name in named if not re.search("[A-Z]{4}", name) and not (ROOT / name).exists()} == set()


def test_every_setting_says_its_meaning(generator: ModuleType) -> None:
    described = dict(generator._descriptions())
    assert {name for name in Settings.model_fields if not described.get(name)} == set()


def test_every_variable_that_the_code_reads_is_documented() -> None:
    documented = (ROOT / "docs/settings.md").read_text()
    assert {name for name in _variables() if f"`{name}`" not in documented} == set()


def _variables() -> Iterator[str]:
    # `SPACE_CREDENTIAL_*` and the like are prefixes; the agent inside a sandbox has names of its own.
    files = [*(ROOT / "src/space").rglob("*.py"), ROOT / "quickstart", ROOT / "test", *(ROOT / "scripts").glob("*")]
    for path in files:
        if path.is_file():
            yield from re.findall(r"\bSPACE_[A-Z][A-Z_]*[A-Z]\b", path.read_text())
