"""From a transcript to the input of a model: compiler, compaction, token estimates."""
