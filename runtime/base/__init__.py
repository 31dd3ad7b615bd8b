"""The base of all rooms: errors, files, progress, limits of time and memory; no physics."""
