//! Writing a value, keeping it as Proxmox keeps it, and reading it back gives the same value: for every field, kind and release.
