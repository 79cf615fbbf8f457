"""What every kind of store does. The test of a new one subclasses StoreContract, and gives it a folder to write in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fastscribe._system import remote

_LARGE = 1 << 18  # bytes of an object whose writing takes a while


class StoreContract:
    @pytest.fixture
    def folder(self) -> str:
        """The URL of a folder that holds nothing and can be written, without a slash at its end."""
        raise NotImplementedError

    def test_write_read_delete(self, folder: str) -> None:
        url = f"{folder}/sub/b c.wav"
        version = remote.write_object(url, b"hello")
        assert remote.stat_object(url) == remote.RemoteObject(url, 5, version)
        assert remote.read_object(url) == remote.Content(b"hello", 5, version)
        assert remote.read_object(url, 1, 3).data == b"ell"
        assert remote.read_object(url, 3, 100).data == b"lo"
        remote.write_object(f"{url}.json", b"of a longer name")
        remote.write_object(url, b"")
        assert remote.read_object(url).data == b"" and remote.stat_object(url).size == 0
        remote.delete_object(url)
        remote.delete_object(url)
        assert remote.read_object(f"{url}.json").data == b"of a longer name"
        remote.delete_object(f"{url}.json")
        for ask in (remote.stat_object, remote.read_object):
            with pytest.raises(remote.RemoteNotFound):
                ask(url)

    def test_list_in_byte_order(self, folder: str) -> None:
        names = ["a-b.wav", "a.wav", "a/c.wav", "a/deep/d.wav", "b.wav"]
        for name in reversed(names):
            remote.write_object(f"{folder}/{name}", name.encode())
        remote.write_object(f"{folder}-old/e.wav", b"of a folder beside")
        found = list(remote.list_objects(folder))
        assert [one.url for one in found] == [f"{folder}/{name}" for name in names]
        assert found == [remote.stat_object(one.url) for one in found]
        assert list(remote.list_objects(f"{folder}/none")) == []
        for url in (*(one.url for one in found), f"{folder}-old/e.wav"):
            remote.delete_object(url)

    def test_conditional_writes(self, folder: str) -> None:
        url = f"{folder}/lock"
        first = remote.write_object(url, b"1", if_version="")
        with pytest.raises(remote.RemoteConflict):
            remote.write_object(url, b"2", if_version="")
        second = remote.write_object(url, b"2", if_version=first)
        with pytest.raises(remote.RemoteConflict):
            remote.write_object(url, b"3", if_version=first)
        assert remote.read_object(url) == remote.Content(b"2", 1, second)
        remote.delete_object(url)

    def test_one_of_several_writers_creates_an_object(self, folder: str) -> None:
        def create(content: bytes) -> bytes | None:
            try:
                remote.write_object(f"{folder}/created", content, if_version="")
            except remote.RemoteConflict:
                return None
            return content

        with ThreadPoolExecutor(4) as threads:
            created = [one for one in threads.map(create, [b"1", b"2", b"3", b"4"]) if one is not None]
        assert created == [remote.read_object(f"{folder}/created").data]
        remote.delete_object(f"{folder}/created")

    def test_a_reader_sees_an_object_before_a_write_or_after_it(self, folder: str) -> None:
        url, letters = f"{folder}/rewritten", [b"a", b"b"] * 5
        remote.write_object(url, b"b" * _LARGE)
        with ThreadPoolExecutor(1) as thread:
            writes = thread.submit(lambda: [remote.write_object(url, one * _LARGE) for one in letters])
            seen = [remote.read_object(url).data]
            while not writes.done():
                seen.append(remote.read_object(url).data)
        assert writes.result() and {(len(one), len(set(one))) for one in seen} == {(_LARGE, 1)}
        assert [one.url for one in remote.list_objects(folder)] == [url]  # what a write needs meanwhile is no object
        remote.delete_object(url)
