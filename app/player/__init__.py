"""The tile player: one JavaScript module, used by the app and by exported HTML, and what hands it a trace."""
