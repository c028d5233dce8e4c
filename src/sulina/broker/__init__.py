"""The broker: topics and their logs, subscriptions and their consumers."""
