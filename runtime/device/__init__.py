"""The place where compiled loops over nodes run: on threads of the CPU, or on a CUDA device."""
