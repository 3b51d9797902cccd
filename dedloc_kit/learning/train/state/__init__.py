"""The state that all peers share: how it goes on, how two are told apart, and how it is kept."""
