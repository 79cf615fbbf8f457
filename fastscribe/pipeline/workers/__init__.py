"""Devices in processes of their own, and helper processes that read, and make texts, for them.

devices.py   what `--devices` names
messages.py  what the processes say to each other
arena.py     the memory that they share
process.py   a process, seen from the coordinator
device.py    a device's process
helper.py    a helper's process
stages.py    what helpers do
helpers.py   the helpers, seen from the coordinator: which gets which job, and what becomes of a dead one's
groups.py, texts.py  jobs: to prepare inputs and to read a batch; to make texts
dispatch.py  which device gets which batch, and what becomes of a dead one's; pure
pool.py      the Executor of a run: puts these together
"""
