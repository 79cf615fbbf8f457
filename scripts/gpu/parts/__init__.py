"""The parts of scripts/gpu_check, by name. A part writes a row after each measurement (scripts/measurement_log.py).

So a crash or a time limit costs one row. Measurements come in order of worth; those without time left are skipped. The first
part that needs a model or audio makes it and keeps it in the scratch folder.
"""
