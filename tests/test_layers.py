"""The core's packages depend on each other in one direction, no imports form a circle, and light programs do without torch.

scripts/house.py has the tiers, and fastscribe/rooms.py the rooms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from fastscribe.rooms import ROOMS
from scripts.house import DOORS, TIERS, imports, is_door, modules, tier_of, upward_imports

# Where a program begins that has no use for torch before a model is loaded, or has none at all.
WITHOUT_TORCH = (
    "cli",
    "transcriber",
    "single",
    "dry_run",
    "pipeline.run",
    "pipeline.workers.pool",
    "pipeline.workers.helper",
    "audio.given",
    "evaluation.compare",
    "ray.worker",
    "report.recorder",
    "report.run_page",
    "training.manifest",
    "training.recipe",
)


def chains_to(start: str, name: str, graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Yield a chain of imports from a module to a library, if there is one."""
    chains, seen = [[start]], {start}
    while chains:
        chain = chains.pop()
        for target in sorted(graph.get(chain[-1], set())):
            if target.split(".")[0] == name:
                yield [*chain, target]
                return
            if target in graph and target not in seen:
                seen.add(target)
                chains.append([*chain, target])


def test_every_module_has_a_tier_or_a_room() -> None:
    assert len(modules()) > 400
    for module in modules():
        tier_of(module)


def test_no_module_is_listed_by_name() -> None:
    names = [name for tier in TIERS for name in tier] + [room.name for room in ROOMS]
    assert not [name for name in names if "." in name]
    assert len(names) == len(set(names)), "a name stands twice in TIERS of scripts/house.py or in fastscribe/rooms.py"


def test_listed_packages_exist() -> None:
    packages = {module.split(".")[0] for module in modules()}
    listed = {name for tier in TIERS for name in tier} | {room.name for room in ROOMS}
    assert listed == packages, "TIERS of scripts/house.py and fastscribe/rooms.py have each package once, and no other"


def test_the_core_imports_neither_a_room_nor_what_lies_above() -> None:
    wrong = [f"{module} must not import {target}" for module, target in upward_imports()]
    advice = (
        "An import of a room inside a function, where its option is looked at, goes into DOORS of scripts/house.py."
    )
    assert not wrong, "\n".join((*wrong, advice))


def test_doors_are_used() -> None:
    for module, rooms in DOORS.items():
        late = imports(modules()[module]) - imports(modules()[module], at_import_time=True)
        unused = set(rooms) - {target.split(".")[0] for target in late}
        assert not unused, f"{module} imports {unused} no more: take that out of DOORS of scripts/house.py"


def test_commands_of_rooms_exist() -> None:
    for room in ROOMS:
        for module in room.commands.values():
            assert f"{room.name}.{module}" in modules()


def test_imports_have_no_circle() -> None:
    """Imports inside functions and under TYPE_CHECKING count too, but for those of rooms where their options are looked at."""
    known = modules()
    left = {
        module: {target for target in imports(path) & known.keys() if not is_door(module, target)}
        for module, path in known.items()
    }
    while free := [module for module, targets in left.items() if not targets & left.keys()]:
        for module in free:
            del left[module]
    way = sorted(left)[:1]
    while way and way[-1] not in way[:-1]:
        way.append(min(left[way[-1]] & left.keys()))
    assert not left, f"a circle of imports: {' -> '.join(way[way.index(way[-1]) :])}"


@pytest.mark.parametrize("start", WITHOUT_TORCH)
def test_light_programs_do_not_import_torch(start: str) -> None:
    graph = {module: imports(path, at_import_time=True) for module, path in modules().items()}
    assert start in graph
    chains = [" -> ".join(chain) for chain in chains_to(start, "torch", graph)]
    assert not chains, f"import one of them inside the function that needs it: {chains}"
