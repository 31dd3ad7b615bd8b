"""Many solutions over a grid or a table of parameters: lines, their records, and the engines that run them."""
