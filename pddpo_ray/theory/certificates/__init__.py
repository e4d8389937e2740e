"""Certificates and alarms: bets on measured draws, their levels and their power."""
