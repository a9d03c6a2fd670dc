"""YAML 1.2 with its core schema: text is a string unless it is written as null, true, false or a number."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml

from rloop_core.errors import ConfigError
from rloop_core.json_text import check_text

DEEPEST = 32
"""Most levels of sections and lists in a config; the shipped ones have five."""
MOST_BYTES = 256 * 1024
"""Limit of one text; the shipped configs have 3 KB."""

_TAG = "tag:yaml.org,2002:"
_NUMBER = list("-+.0123456789")
_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
_CORE = {
    "null": (re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    "bool": (re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    "int": (re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"), _NUMBER),
    "float": (re.compile(rf"(?:{_FLOAT})\Z"), _NUMBER),
}
_KINDS = {yaml.ScalarNode: {*_CORE, "str"}, yaml.SequenceNode: {"seq"}, yaml.MappingNode: {"map"}}
_MOST_DIGITS = 18
_WORDS = {"null": "null", "bool": "true or false", "int": "a whole number", "float": "a number"}


def parse_yaml(text: str, where: str) -> Any:
    """Parse a YAML text into null, booleans, numbers, strings, lists, and mappings with string keys.

    Args:
        text: At most MOST_BYTES, nested at most DEEPEST levels, without aliases.
        where: Origin of the text for errors: the file, or `--set a.b=c`.

    Raises:
        ConfigError: Names the field, if there is one, and the line.
    """
    try:
        if len(text.encode(errors="surrogatepass")) > MOST_BYTES:
            raise ConfigError(f"is longer than {MOST_BYTES // 1024} KiB", field=where, fix="shorten it")
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except _Refused as error:
        field = ".".join(error.path) or where
        raise ConfigError(f"{error.what} (line {error.line} of {where})", field=field, fix=error.fix) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        what = f"is not valid YAML{line}: {getattr(error, 'problem', None) or error}"
        raise ConfigError(what, field=where, fix="check indentation and quotes") from error


class _Refused(Exception):  # noqa: N818
    """Valid YAML that a config must not hold."""

    def __init__(self, what: str, path: list[str], line: int, fix: str) -> None:
        super().__init__(what)
        self.what, self.path, self.line, self.fix = what, path, line, fix


class _Loader(yaml.SafeLoader):
    """Checks nodes while they are composed, when the path of their fields is known."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - an instance variable to the type checker
    yaml_constructors: ClassVar[dict[Any, Any]] = {}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._path: list[str] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node within the limits; `index` is a mapping value's key, a list's position, or None for a key."""
        part = index.value if isinstance(index, yaml.ScalarNode) else index
        if part is not None:
            self._path.append(str(part)[:80])
        is_key = parent is not None and index is None
        if is_key and not self.check_event(yaml.ScalarEvent):
            self._refuse("a key is not a name", "use plain field names")
        if self.check_event(yaml.AliasEvent):
            self._refuse("is an alias, and aliases are not read", "write the value out")
        if len(self._path) > DEEPEST:
            self._refuse(f"is nested deeper than {DEEPEST} levels", "flatten it")
        node = super().compose_node(parent, index)  # type: ignore[no-untyped-call]
        self._check(node, is_key)
        if part is not None:
            self._path.pop()
        return node

    def _check(self, node: Any, is_key: bool) -> None:
        line = node.start_mark.line + 1
        kind = "str" if is_key else node.tag.removeprefix(_TAG)
        if kind not in _KINDS[type(node)]:
            raise _Refused(f"has the tag {node.tag[:80]!r}, which is not read here", self._path, line, "leave it out")
        node.tag = f"{_TAG}{kind}"
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise _Refused("given twice", [*self._path, key.value], key.start_mark.line + 1, "keep one")
                seen.add(key.value)
        elif isinstance(node, yaml.ScalarNode):
            if kind in _CORE and not _CORE[kind][0].match(node.value):
                raise _Refused(f"is not {_WORDS[kind]}: {node.value[:40]!r}", self._path, line, "correct it")
            try:
                node.value = check_text(_whole(node.value))
                if kind == "int":
                    _integer(node.value)
            except ValueError as error:
                raise _Refused(str(error), self._path, line, "correct it") from None

    def _refuse(self, what: str, fix: str) -> None:
        raise _Refused(what, self._path, self.peek_event().start_mark.line + 1, fix)  # type: ignore[no-untyped-call]


def _whole(text: str) -> str:
    """Replace pairs of surrogate escapes, by which JSON writes an emoji, with the character."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _integer(text: str) -> int:
    """Parse a decimal, 0o octal or 0x hexadecimal number; 010 is ten."""
    if len(text.lstrip("+-")) > _MOST_DIGITS:
        raise ValueError(f"has more than {_MOST_DIGITS} digits")
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _float(text: str) -> float:
    return float(text.replace(".", "") if text[-1] in "fFnN" else text)


for _kind, (_pattern, _first) in _CORE.items():
    _Loader.add_implicit_resolver(f"{_TAG}{_kind}", _pattern, _first)
for _kind, _construct in {
    "null": lambda loader, node: None,
    "bool": lambda loader, node: node.value.lower() == "true",
    "int": lambda loader, node: _integer(node.value),
    "float": lambda loader, node: _float(node.value),
    "str": lambda loader, node: node.value,
    "seq": lambda loader, node: loader.construct_sequence(node, deep=True),
    "map": lambda loader, node: loader.construct_mapping(node, deep=True),
}.items():
    _Loader.add_constructor(f"{_TAG}{_kind}", _construct)
