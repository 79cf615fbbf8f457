"""fastscribe against other speech recognisers: same files, same cores, same device, one run, in alternating turns.

peers.py knows who they are and what they can read, recordings.py over what they are compared, worker.py is one side in a
process of its own, process.py talks to it, turns.py lets two of them take turns, and compare.py does all of that in order.
"""
