//! Every request that the client can send, held against a table of Proxmox's API: method, path and parameters. The table is made
//! from the API's own description and holds only what the commands use.
