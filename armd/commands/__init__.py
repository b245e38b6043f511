"""Verbs that belong to no other room: generate and demo."""
