"""Compositions: look (system), decide (rules), act (system), tell (journal, notify, state)."""
