"""The server: one model in memory, many clients, all decoded together."""
