"""Turns raw texts into validated TSVs with a manifest: the library behind `bertaccum prepare`."""
