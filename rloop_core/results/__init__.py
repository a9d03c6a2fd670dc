"""What runs have left in the store, read and shown; nothing here runs a stage."""
