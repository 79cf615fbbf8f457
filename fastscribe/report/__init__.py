"""Reports of a run's or a benchmark's speed, utilisation and cost: one HTML file without requests or scripts.

    RunRecorder --data()--> run_page.render    one run of `fastscribe transcribe`
    bench/document.py ----> bench_page.render  one benchmark

Pages are made from plain JSON-like data by markup.py (HTML) and svg.py (pictures), and stored by files.py. No torch, and no
clock except the recorder's.
"""
