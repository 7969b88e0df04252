//! Supervised children: deadlines, verdicts, the canary.
