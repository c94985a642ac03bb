"""Figures, scorecard and tables: read records, never run anything."""
