"""fastscribe against other speech recognisers: same files, same cores, same device, alternating turns in one run.

compare.py runs a comparison: peers.py describes the recognisers and the models they read, recordings.py gathers the
recordings, worker.py is one side in a process of its own, process.py talks to it, and turns.py alternates the sides.
"""
