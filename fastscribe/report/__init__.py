"""The report of a run as one HTML file, without requests or scripts.

RunRecorder.data() and RunStats.to_json() are plain data, of which run_page.render() makes the page with markup.py.
"""
