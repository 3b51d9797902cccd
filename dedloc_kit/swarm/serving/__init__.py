"""A model that is served by its community: spans on volunteers' machines, and sessions that outlive them."""
