"""Finds the number of workers, and records where the time goes; the core imports none
of it.
"""
