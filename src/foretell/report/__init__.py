"""Turns an `Estimate` into what people and programs read. One file per form."""
