"""Pure decisions: values in, values out. No clock, file, socket, process, signal or log."""
