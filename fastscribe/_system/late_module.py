"""A module that another package imports, and that is run when something first asks it for a name."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def import_late(name: str, before: Collection[str] = ()) -> None:
    """Run a module when it is first asked for a name, and not when it is imported, if it is not imported yet.

    Args:
        name: The module's.
        before: Modules that need what running it does. It is run before the first of them.
    """
    if name not in sys.modules:
        sys.meta_path.insert(0, _Finder(name, frozenset(before)))


class _Finder(MetaPathFinder):
    def __init__(self, name: str, before: frozenset[str]) -> None:
        self._name, self._before = name, before

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._before and isinstance(late := sys.modules.get(self._name), _Late):
            late.run()
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._name else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, real: Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Late(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it to the module."""


class _Late(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python's import looks for and does without
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.run()
        return getattr(self, name)

    def run(self) -> None:
        spec = self.__spec__
        assert spec is not None and isinstance(spec.loader, _Loader)
        self.__loader__ = spec.loader = spec.loader.real
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
