"""Pages that say how fast, how full and how dear a run or a benchmark was: one HTML file, nothing fetched, no script.

    RunRecorder --data()--> run_page.render    one run of `fastscribe transcribe`
    bench/document.py ----> bench_page.render  one benchmark

Pages are made from plain JSON-like data, by markup.py (HTML) and svg/ (pictures), and stored by files.py. No torch, no clock
but the recorder's.
"""
