"""Phase diagrams: which solution is lowest in a plane of two parameters, where branches exist and are stable."""
