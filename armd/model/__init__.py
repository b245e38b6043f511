"""The network, exactly: order, layers, queries, head. These files travel with saved weights."""
