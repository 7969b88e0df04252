//! What is here and what is wrong with it: inspection, findings, environment profiles.
