"""How text becomes batches: sources and formats -> tokens -> shards -> windows -> batches."""
