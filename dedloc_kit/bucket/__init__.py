"""What all peers of a run need alike, by HTTPS: a Storage Bucket of the Hub, or a folder that a web server shows."""
