"""Tools of agent programs: serves the offered tools, and judges and observes the programs' own."""
