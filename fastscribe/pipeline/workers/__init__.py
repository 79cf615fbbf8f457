"""Several devices, each in a process of its own with a model of its own.

devices.py   what `--devices` names
messages.py  what the processes say to each other
worker.py    a device's process
process.py   the same process, seen from the coordinator
dispatch.py  which device gets which batch, and what becomes of a dead one's; pure
pool.py      the Executor of a run: puts these together
"""
