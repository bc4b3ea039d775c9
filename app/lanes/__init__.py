"""The lanes: one lane per SM, one bar per piece of work; one JavaScript module, used by the app and by exported HTML."""
