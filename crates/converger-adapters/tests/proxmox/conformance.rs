//! The observer passes what any observer must pass, over HTTPS and against worlds whose truth is known.
