"""Examples: `pytest --pyargs ferroce.examples`."""
