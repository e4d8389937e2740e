"""Messages to people who are not at the machine: webhooks and mail."""
