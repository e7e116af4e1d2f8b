"""The contracts between foretell and the process it watches, each defined once and loaded on both sides.

Standard library only, and light: every Python process of the user's job imports `journal` and `options`.
"""
