"""Experience replay: one logical store, laid over the devices of a run."""
