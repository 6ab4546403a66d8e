"""The words and rules of sessiond: values and pure functions, standard library only, no I/O."""
