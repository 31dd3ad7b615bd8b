"""Branches around their turns, their events, and these in a second parameter."""
