"""A deterministic world of peers: virtual time, lines, disks and faults, all from one seed."""
