"""The tools of agent programs: offering them nousd's, and judging and observing their own."""
