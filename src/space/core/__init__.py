"""What is true: types, rules and ports.  Pure: no I/O, no framework."""
