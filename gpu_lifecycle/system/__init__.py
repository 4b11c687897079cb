"""One door per outside thing. A door acts or looks, translates errors, and decides nothing."""
