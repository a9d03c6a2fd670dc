"""DAPO exploration on TRL: complete, recorded, resumable."""
