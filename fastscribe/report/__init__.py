"""Report of a run's speed, utilisation and cost: one HTML file without requests or scripts.

    RunRecorder --data()--> run_page.render    one run of `fastscribe transcribe`

The page is made from plain JSON-like data by markup.py (HTML) and svg.py (pictures), and stored by files.py. No torch, and no
clock except the recorder's.
"""
