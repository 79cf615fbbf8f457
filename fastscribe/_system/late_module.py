"""A module that another package imports, and that is run when something first asks it for a name."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any

_RUNS = RLock()  # another thread waits for a module that is being run


def import_late(name: str, before: Collection[str] = ()) -> None:
    """Run a module when it is first asked for a name, and not when it is imported, if it is not imported yet.

    Args:
        name: The module's.
        before: Modules that need what running it does. It is run before the first of them.
    """
    if name not in sys.modules:
        sys.meta_path.insert(0, _Importer(name, frozenset(before)))


class _Importer(MetaPathFinder, Loader):
    def __init__(self, name: str, before: frozenset[str]) -> None:
        self._name, self._before, self._late = name, before, _Late(name)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._before and type(self._late) is _Late and self._late.__spec__ is not None:
            self._late.run()
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._name else None
        if spec is not None:
            self._late.real_loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._late

    def exec_module(self, module: ModuleType) -> None:
        """Leave it to the module."""


class _Late(ModuleType):
    real_loader: Any
    is_running = False

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):  # else what Python's import looks for and does without
            self.run()
        if name in vars(self):
            return vars(self)[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def run(self) -> None:
        with _RUNS:
            if type(self) is not _Late or self.is_running:
                return
            self.is_running = True
            try:
                self.real_loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
            finally:
                del self.is_running
