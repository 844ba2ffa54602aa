"""Evidence in the formats of other tools: one module each, all from the same measures (`farm.export.measures`)."""
