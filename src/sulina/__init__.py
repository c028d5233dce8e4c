"""Publish/subscribe where every topic is an ACID log and every log is a table."""
