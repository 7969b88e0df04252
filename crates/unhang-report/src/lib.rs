//! What was seen, as tables, JSON and a self-contained page.
