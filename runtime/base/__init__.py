"""What every room stands on: errors, files, progress, limits of time and memory; no physics."""
